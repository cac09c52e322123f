func.func @main() {
  %a = stablehlo.constant dense<[(1.0, -2.0), (0.5, 4.0)]> : tensor<2xcomplex<f32>>
  %b = stablehlo.constant dense<[(2.0, -4.0), (1.0, 8.0)]> : tensor<2xcomplex<f32>>
  %0 = stablehlo.add %a, %a : tensor<2xcomplex<f32>>
  check.expect_almost_eq %0, %b : tensor<2xcomplex<f32>>
  func.return
}

// -----

func.func @main() {
  %a = stablehlo.constant dense<[(1.0, -2.0), (0.5, 4.0)]> : tensor<2xcomplex<f32>>
  %0 = stablehlo.add %a, %a : tensor<2xcomplex<f32>>
  "check.expect_eq_const"(%0) {value = dense<[(2.0, -4.0), (1.0, 8.0)]> : tensor<2xcomplex<f32>>} : (tensor<2xcomplex<f32>>) -> ()
  return
}

// -----

func.func @main() {
  %0 = call @inputs() : () -> tensor<2xcomplex<f32>>
  %1 = call @expected() : () -> tensor<2xcomplex<f32>>
  %2 = stablehlo.add %0, %0 : tensor<2xcomplex<f32>>
  stablehlo.custom_call @check.expect_close(%2, %1) {has_side_effect = true} : (tensor<2xcomplex<f32>>, tensor<2xcomplex<f32>>) -> ()
  return
}
func.func private @inputs() -> tensor<2xcomplex<f32>> {
  %a = stablehlo.constant dense<[(1.0, 0x7F800000), (2.0,3.0)]> : tensor<2xcomplex<f32>>
  return %a : tensor<2xcomplex<f32>>
}
func.func private @expected() -> tensor<2xcomplex<f32>> {
  %a = stablehlo.constant dense<[(2.0, 0x7F800000), (4.0,6.0)]> : tensor<2xcomplex<f32>>
  return %a : tensor<2xcomplex<f32>>
}
