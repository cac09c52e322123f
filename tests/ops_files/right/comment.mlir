func.func @main() {
  %a = stablehlo.constant dense<[1, 2]> : tensor<2xi32>
  %b = stablehlo.constant dense<[2, 4]> : tensor<2xi32>
  %0 = stablehlo.add %a, %a : tensor<2xi32>
  check.expect_eq %0, %b : tensor<2xi32>
  // check.expect_eq_const %0, dense<[2, 4]> : tensor<2xi32>
  func.return
}
