// Nothing says what it has to give: it is skipped.
module @jit_fun {
  func.func public @main(%arg0: tensor<?x4xf32>) -> tensor<?x4xf32> {
    return %arg0 : tensor<?x4xf32>
  }
}
