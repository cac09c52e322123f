"builtin.module"() <{sym_name = "jit_main"}> ({
  "func.func"() <{function_type = () -> (tensor<2xf16>, tensor<2xi32>), sym_name = "main", sym_visibility = "public"}> ({
    %4:2 = "func.call"() <{callee = @inputs}> : () -> (tensor<3x2xf16>, tensor<3x2xi32>)
    %5:2 = "func.call"() <{callee = @expected}> : () -> (tensor<2xf16>, tensor<2xi32>)
    %6 = "stablehlo.constant"() <{value = dense<-9.0> : tensor<f16>}> : () -> tensor<f16>
    %7 = "stablehlo.constant"() <{value = dense<9> : tensor<i32>}> : () -> tensor<i32>
    %8:2 = "stablehlo.reduce"(%4#0, %4#1, %6, %7) <{dimensions = array<i64: 0>}> ({
    ^bb0(%a: tensor<f16>, %b: tensor<i32>, %c: tensor<f16>, %d: tensor<i32>):
      %9 = "stablehlo.maximum"(%a, %c) : (tensor<f16>, tensor<f16>) -> tensor<f16>
      %10 = "stablehlo.minimum"(%b, %d) : (tensor<i32>, tensor<i32>) -> tensor<i32>
      "stablehlo.return"(%9, %10) : (tensor<f16>, tensor<i32>) -> ()
    }) : (tensor<3x2xf16>, tensor<3x2xi32>, tensor<f16>, tensor<i32>) -> (tensor<2xf16>, tensor<2xi32>)
    "stablehlo.custom_call"(%8#0, %5#0) <{call_target_name = "check.expect_close", has_side_effect = true}> : (tensor<2xf16>, tensor<2xf16>) -> ()
    "stablehlo.custom_call"(%8#1, %5#1) <{call_target_name = "check.expect_eq", has_side_effect = true}> : (tensor<2xi32>, tensor<2xi32>) -> ()
    "func.return"(%8#0, %8#1) : (tensor<2xf16>, tensor<2xi32>) -> ()
  }) : () -> ()
  "func.func"() <{function_type = () -> (tensor<3x2xf16>, tensor<3x2xi32>), sym_name = "inputs", sym_visibility = "private"}> ({
    %2 = "stablehlo.constant"() <{value = dense<[[-1.5, 2.0], [0.25, -3.0], [0.125, 1.0]]> : tensor<3x2xf16>}> : () -> tensor<3x2xf16>
    %3 = "stablehlo.constant"() <{value = dense<[[4, -2], [7, 0], [5, 3]]> : tensor<3x2xi32>}> : () -> tensor<3x2xi32>
    "func.return"(%2, %3) : (tensor<3x2xf16>, tensor<3x2xi32>) -> ()
  }) : () -> ()
  "func.func"() <{function_type = () -> (tensor<2xf16>, tensor<2xi32>), sym_name = "expected", sym_visibility = "private"}> ({
    %0 = "stablehlo.constant"() <{value = dense<[0.25, 2.0]> : tensor<2xf16>}> : () -> tensor<2xf16>
    %1 = "stablehlo.constant"() <{value = dense<[4, -2]> : tensor<2xi32>}> : () -> tensor<2xi32>
    "func.return"(%0, %1) : (tensor<2xf16>, tensor<2xi32>) -> ()
  }) : () -> ()
}) {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} : () -> ()
