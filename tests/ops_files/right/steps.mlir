// What is expected is computed: in f32 it is 0, and in f64 it would be 1.
func.func @main() {
  %0 = call @inputs() : () -> tensor<f32>
  %1 = call @expected() : () -> tensor<f32>
  %c = stablehlo.constant dense<1.0> : tensor<f32>
  %2 = stablehlo.add %0, %c : tensor<f32>
  %3 = stablehlo.subtract %2, %0 : tensor<f32>
  stablehlo.custom_call @check.expect_eq(%3, %1) {has_side_effect = true} : (tensor<f32>, tensor<f32>) -> ()
  return
}
func.func private @inputs() -> tensor<f32> {
  %a = stablehlo.constant dense<16777216.0> : tensor<f32>
  return %a : tensor<f32>
}
func.func private @expected() -> tensor<f32> {
  %a = stablehlo.constant dense<16777216.0> : tensor<f32>
  %c = stablehlo.constant dense<1.0> : tensor<f32>
  %2 = stablehlo.add %a, %c : tensor<f32>
  %3 = stablehlo.subtract %2, %a : tensor<f32>
  return %3 : tensor<f32>
}
