func.func @main() {
  %0 = stablehlo.constant dense<[1, 2]> : tensor<2xi32>
  %1 = call @expected() : () -> tensor<2xi32>
  %2 = stablehlo.add %0, %0 : tensor<2xi32>
  stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<2xi32>, tensor<2xi32>) -> ()
  return
}
func.func private @expected() -> tensor<2xi32> {
  %a = stablehlo.constant dense<[2, 4]> : tensor<2xi32>
  return %a : tensor<2xi32>
}
