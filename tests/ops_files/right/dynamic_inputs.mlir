func.func @main() {
  %0 = call @inputs() : () -> tensor<4xf32>
  %1 = call @expected() : () -> tensor<2x2xf32>
  %s = stablehlo.constant dense<[2, 2]> : tensor<2xi32>
  %2 = stablehlo.dynamic_reshape %0, %s : (tensor<4xf32>, tensor<2xi32>) -> tensor<2x2xf32>
  stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<2x2xf32>, tensor<2x2xf32>) -> ()
  return
}
func.func private @inputs() -> tensor<4xf32> {
  %a = stablehlo.constant dense<[1.0,2.0,3.0,4.0]> : tensor<4xf32>
  return %a : tensor<4xf32>
}
func.func private @expected() -> tensor<2x2xf32> {
  %a = stablehlo.constant dense<[[1.0,2.0],[3.0,4.0]]> : tensor<2x2xf32>
  return %a : tensor<2x2xf32>
}
