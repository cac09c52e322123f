// RUN: stablehlo-translate --interpret -split-input-file %s

func.func @eq() {
  %a = stablehlo.constant dense<[-2, 0, 2]> : tensor<3xi64>
  %b = stablehlo.constant dense<[-4, 0, 4]> : tensor<3xi64>
  %0 = stablehlo.add %a, %a : tensor<3xi64>
  check.expect_eq %0, %b : tensor<3xi64>
  func.return
}

// -----

func.func @eq_const() {
  %a = stablehlo.constant dense<[true, false]> : tensor<2xi1>
  %0 = stablehlo.not %a : tensor<2xi1>
  check.expect_eq_const %0, dense<[false,
                                   true]> : tensor<2xi1>
  func.return
}

// -----

func.func @almost_eq() {
  %a = stablehlo.constant dense<[5.0, 0x7FC00000]> : tensor<2xf32>
  %b = stablehlo.constant dense<[-5.00005, 0x7FC00000]> : tensor<2xf32>
  %0 = stablehlo.negate %a : tensor<2xf32>
  check.expect_almost_eq %0, %b : tensor<2xf32>
  func.return
}

// -----

func.func @almost_eq_const_within() {
  %a = stablehlo.constant dense<[5.0, 7.0]> : tensor<2xf32>
  %0 = stablehlo.negate %a : tensor<2xf32>
  check.expect_almost_eq_const %0, dense<[-5.1, -6.9]> : tensor<2xf32> {tolerance = 0.11 : f64}
  check.expect_almost_eq_const %0, dense<[-5.1, -6.9]>, tolerance = 0.11 : tensor<2xf32>
  func.return
}

// -----

func.func @close() {
  %a = stablehlo.constant dense<5.0> : tensor<f16>
  %b = stablehlo.constant dense<-5.010> : tensor<f16>
  %0 = stablehlo.negate %a : tensor<f16>
  check.expect_close %0, %b, max_ulp_difference = 3 : tensor<f16>, tensor<f16>
  "check.expect_close"(%0, %b) {max_ulp_difference = 3 : ui64, min_ulp_difference = 1 : ui64} : (tensor<f16>, tensor<f16>) -> ()
  func.return
}
