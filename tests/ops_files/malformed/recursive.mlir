func.func @main() {
  %0 = call @f() : () -> tensor<2xi32>
  %1 = stablehlo.add %0, %0 : tensor<2xi32>
  stablehlo.custom_call @check.expect_eq(%0, %1) {has_side_effect = true} : (tensor<2xi32>, tensor<2xi32>) -> ()
  return
}
func.func private @f() -> tensor<2xi32> {
  %0 = call @f() : () -> tensor<2xi32>
  return %0 : tensor<2xi32>
}
