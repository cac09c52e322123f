func.func @main() {
  %0 = call @inputs() : () -> tensor<4xi4>
  %1 = stablehlo.convert %0 : (tensor<4xi4>) -> tensor<4xi8>
  %2 = stablehlo.constant dense<[1, -8, 7, 0]> : tensor<4xi8>
  stablehlo.custom_call @check.expect_eq(%1, %2) {has_side_effect = true} : (tensor<4xi8>, tensor<4xi8>) -> ()
  return
}
func.func private @inputs() -> tensor<4xi4> {
  %c = stablehlo.constant dense<[1, -8, 7, 0]> : tensor<4xi4>
  return %c : tensor<4xi4>
}
