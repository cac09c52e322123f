func.func @main() {
  %a = stablehlo.constant dense<[1, 2]> : tensor<2xi32>
  stablehlo.custom_call @check.expect_eq(%a) {has_side_effect = true} : (tensor<2xi32>) -> ()
  return
}
