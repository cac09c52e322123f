func.func @almost_eq_has_the_sign() {
  %a = stablehlo.constant dense<0.00001> : tensor<f32>
  %0 = stablehlo.negate %a : tensor<f32>
  check.expect_almost_eq_const %0, dense<0.00001> : tensor<f32>
  func.return
}

// -----

func.func @eq_has_no_nan() {
  %a = stablehlo.constant dense<0x7FC00000> : tensor<f32>
  %0 = stablehlo.negate %a : tensor<f32>
  check.expect_eq_const %0, dense<0x7FC00000> : tensor<f32>
  func.return
}

// -----

func.func @close_is_too_far() {
  %a = stablehlo.constant dense<[5.0, 6.0]> : tensor<2xf16>
  %0 = stablehlo.negate %a : tensor<2xf16>
  %b = stablehlo.constant dense<[-5.0, -6.1]> : tensor<2xf16>
  check.expect_close %0, %b : tensor<2xf16>, tensor<2xf16>
  func.return
}

// -----

func.func @close_is_too_near() {
  %a = stablehlo.constant dense<5.0> : tensor<f16>
  %0 = stablehlo.negate %a : tensor<f16>
  %b = stablehlo.constant dense<-5.0> : tensor<f16>
  check.expect_close %0, %b, max_ulp_difference = 3, min_ulp_difference = 1 : tensor<f16>, tensor<f16>
  func.return
}
