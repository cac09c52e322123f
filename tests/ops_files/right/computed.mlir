// What is expected is computed, too: both are asked of the backend.
func.func @main() -> tensor<i1> {
  %0 = call @inputs() : () -> tensor<3xf32>
  %1 = call @expected(%0) : (tensor<3xf32>) -> tensor<3xf32>
  %2 = stablehlo.add %0, %0 : tensor<3xf32>
  %3 = stablehlo.custom_call @check.eq(%2, %1) : (tensor<3xf32>, tensor<3xf32>) -> tensor<i1>
  return %3 : tensor<i1>
}
func.func private @inputs() -> tensor<3xf32> {
  %c = stablehlo.constant dense<[1.0, 2.0, 3.0]> : tensor<3xf32>
  return %c : tensor<3xf32>
}
func.func private @expected(%a: tensor<3xf32>) -> tensor<3xf32> {
  %c = stablehlo.constant dense<2.0> : tensor<3xf32>
  %0 = stablehlo.multiply %a, %c : tensor<3xf32>
  return %0 : tensor<3xf32>
}
