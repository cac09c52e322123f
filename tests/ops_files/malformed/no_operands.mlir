func.func @main() {
  "check.expect_eq"() : () -> ()
  return
}
