func.func @main() {
  %0 = stablehlo.add %nothing : tensor<3xf32>
  return
}
