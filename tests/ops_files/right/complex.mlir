module {
  func.func @main() -> tensor<2xcomplex<f32>> {
    %0 = call @inputs() : () -> tensor<2xcomplex<f32>>
    %1 = call @expected() : () -> tensor<2xcomplex<f32>>
    %2 = stablehlo.add %0, %0 : tensor<2xcomplex<f32>>
    stablehlo.custom_call @check.expect_almost_eq(%2, %1) {has_side_effect = true} : (tensor<2xcomplex<f32>>, tensor<2xcomplex<f32>>) -> ()
    return %2 : tensor<2xcomplex<f32>>
  }
  func.func private @inputs() -> tensor<2xcomplex<f32>> {
    %c = stablehlo.constant dense<[(1.0, -2.0), (0.5, 4.0)]> : tensor<2xcomplex<f32>>
    return %c : tensor<2xcomplex<f32>>
  }
  func.func private @expected() -> tensor<2xcomplex<f32>> {
    %c = stablehlo.constant dense<[(2.0, -4.0), (1.0, 8.0)]> : tensor<2xcomplex<f32>>
    return %c : tensor<2xcomplex<f32>>
  }
}
