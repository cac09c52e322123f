module @deepseek_v3_prefill_3_logits {
  func.func public @main(
    %model.embed_tokens.weight: tensor<17x10xf32>,
    %model.layers.0.input_layernorm.weight: tensor<10xf32>,
    %model.layers.0.self_attn.q_a_proj.weight: tensor<7x10xf32>,
    %model.layers.0.self_attn.q_a_proj.bias: tensor<7xf32>,
    %model.layers.0.self_attn.q_a_layernorm.weight: tensor<7xf32>,
    %model.layers.0.self_attn.q_b_proj.weight: tensor<42x7xf32>,
    %model.layers.0.self_attn.kv_a_proj_with_mqa.weight: tensor<9x10xf32>,
    %model.layers.0.self_attn.kv_a_proj_with_mqa.bias: tensor<9xf32>,
    %model.layers.0.self_attn.kv_a_layernorm.weight: tensor<5xf32>,
    %model.layers.0.self_attn.kv_b_proj.weight: tensor<30x5xf32>,
    %model.layers.0.self_attn.o_proj.weight: tensor<10x12xf32>,
    %model.layers.0.self_attn.o_proj.bias: tensor<10xf32>,
    %model.layers.0.post_attention_layernorm.weight: tensor<10xf32>,
    %model.layers.0.mlp.gate_proj.weight: tensor<14x10xf32>,
    %model.layers.0.mlp.up_proj.weight: tensor<14x10xf32>,
    %model.layers.0.mlp.down_proj.weight: tensor<10x14xf32>,
    %model.layers.1.input_layernorm.weight: tensor<10xf32>,
    %model.layers.1.self_attn.q_a_proj.weight: tensor<7x10xf32>,
    %model.layers.1.self_attn.q_a_proj.bias: tensor<7xf32>,
    %model.layers.1.self_attn.q_a_layernorm.weight: tensor<7xf32>,
    %model.layers.1.self_attn.q_b_proj.weight: tensor<42x7xf32>,
    %model.layers.1.self_attn.kv_a_proj_with_mqa.weight: tensor<9x10xf32>,
    %model.layers.1.self_attn.kv_a_proj_with_mqa.bias: tensor<9xf32>,
    %model.layers.1.self_attn.kv_a_layernorm.weight: tensor<5xf32>,
    %model.layers.1.self_attn.kv_b_proj.weight: tensor<30x5xf32>,
    %model.layers.1.self_attn.o_proj.weight: tensor<10x12xf32>,
    %model.layers.1.self_attn.o_proj.bias: tensor<10xf32>,
    %model.layers.1.post_attention_layernorm.weight: tensor<10xf32>,
    %model.layers.1.mlp.gate.weight: tensor<6x10xf32>,
    %model.layers.1.mlp.gate.e_score_correction_bias: tensor<6xf32>,
    %model.layers.1.mlp.experts.gate_up_proj: tensor<6x6x10xf32>,
    %model.layers.1.mlp.experts.down_proj: tensor<6x10x3xf32>,
    %model.layers.1.mlp.shared_experts.gate_proj.weight: tensor<3x10xf32>,
    %model.layers.1.mlp.shared_experts.up_proj.weight: tensor<3x10xf32>,
    %model.layers.1.mlp.shared_experts.down_proj.weight: tensor<10x3xf32>,
    %model.norm.weight: tensor<10xf32>,
    %lm_head.weight: tensor<17x10xf32>,
    %tokens: tensor<3xi32>,
    %length: tensor<i32>
  ) -> (tensor<17xf32>, tensor<2x1x5x5xf32>, tensor<2x1x5x4xf32>) {
    %c = stablehlo.constant dense<0.0> : tensor<2x1x5x5xf32>
    %c1 = stablehlo.constant dense<0.0> : tensor<2x1x5x4xf32>
    %iota = stablehlo.iota dim = 0 : tensor<3x3xi32>
    %iota1 = stablehlo.iota dim = 1 : tensor<3x3xi32>
    %cmp = stablehlo.compare LE, %iota1, %iota, SIGNED : (tensor<3x3xi32>, tensor<3x3xi32>) -> tensor<3x3xi1>
    %c2 = stablehlo.constant dense<"0x3DD4733F3DD4733F3DD4733F3DD4733FCCBD033F0BD4733FCCBD033F0BD4733FF8EFCABE75D3733FF8EFCABE75D3733F"> : tensor<3x2x2xf32>
    %c3 = stablehlo.constant dense<"0x00000080000000800000000000000000D12C4DBFE90C1CBBD12C4D3FE90C1C3B8FB65DBFC90C9CBB8FB65D3FC90C9C3B"> : tensor<3x2x2xf32>
    %embed_tokens.r = stablehlo.reshape %tokens : (tensor<3xi32>) -> tensor<3x1xi32> loc("embed_tokens")
    %embed_tokens.rows = "stablehlo.gather"(%model.embed_tokens.weight, %embed_tokens.r) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 10>}> : (tensor<17x10xf32>, tensor<3x1xi32>) -> tensor<3x10xf32> loc("embed_tokens")
    %l0_input_layernorm.mul = stablehlo.multiply %embed_tokens.rows, %embed_tokens.rows : tensor<3x10xf32> loc("layers.0.input_layernorm")
    %c4 = stablehlo.constant dense<0.0> : tensor<f32>
    %l0_input_layernorm.red = stablehlo.reduce(%l0_input_layernorm.mul init: %c4) applies stablehlo.add across dimensions = [1] : (tensor<3x10xf32>, tensor<f32>) -> tensor<3xf32> loc("layers.0.input_layernorm")
    %c5 = stablehlo.constant dense<0.1> : tensor<3xf32>
    %l0_input_layernorm.mul1 = stablehlo.multiply %l0_input_layernorm.red, %c5 : tensor<3xf32> loc("layers.0.input_layernorm")
    %c6 = stablehlo.constant dense<3.0e-05> : tensor<3xf32>
    %l0_input_layernorm.add = stablehlo.add %l0_input_layernorm.mul1, %c6 : tensor<3xf32> loc("layers.0.input_layernorm")
    %l0_input_layernorm.rsqrt = stablehlo.rsqrt %l0_input_layernorm.add : tensor<3xf32> loc("layers.0.input_layernorm")
    %l0_input_layernorm.bc = stablehlo.broadcast_in_dim %l0_input_layernorm.rsqrt, dims = [0] : (tensor<3xf32>) -> tensor<3x10xf32> loc("layers.0.input_layernorm")
    %l0_input_layernorm.mul2 = stablehlo.multiply %embed_tokens.rows, %l0_input_layernorm.bc : tensor<3x10xf32> loc("layers.0.input_layernorm")
    %l0_input_layernorm.bc1 = stablehlo.broadcast_in_dim %model.layers.0.input_layernorm.weight, dims = [1] : (tensor<10xf32>) -> tensor<3x10xf32> loc("layers.0.input_layernorm")
    %l0_input_layernorm.mul3 = stablehlo.multiply %l0_input_layernorm.mul2, %l0_input_layernorm.bc1 : tensor<3x10xf32> loc("layers.0.input_layernorm")
    %l0_self_attn_q_a_proj.dot = stablehlo.dot_general %l0_input_layernorm.mul3, %model.layers.0.self_attn.q_a_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<3x10xf32>, tensor<7x10xf32>) -> tensor<3x7xf32> loc("layers.0.self_attn.q_a_proj")
    %l0_self_attn_q_a_proj.bc = stablehlo.broadcast_in_dim %model.layers.0.self_attn.q_a_proj.bias, dims = [1] : (tensor<7xf32>) -> tensor<3x7xf32> loc("layers.0.self_attn.q_a_proj")
    %l0_self_attn_q_a_proj.add = stablehlo.add %l0_self_attn_q_a_proj.dot, %l0_self_attn_q_a_proj.bc : tensor<3x7xf32> loc("layers.0.self_attn.q_a_proj")
    %l0_self_attn_q_a_layernorm.mul = stablehlo.multiply %l0_self_attn_q_a_proj.add, %l0_self_attn_q_a_proj.add : tensor<3x7xf32> loc("layers.0.self_attn.q_a_layernorm")
    %l0_self_attn_q_a_layernorm.red = stablehlo.reduce(%l0_self_attn_q_a_layernorm.mul init: %c4) applies stablehlo.add across dimensions = [1] : (tensor<3x7xf32>, tensor<f32>) -> tensor<3xf32> loc("layers.0.self_attn.q_a_layernorm")
    %c7 = stablehlo.constant dense<0.14285714285714285> : tensor<3xf32>
    %l0_self_attn_q_a_layernorm.mul1 = stablehlo.multiply %l0_self_attn_q_a_layernorm.red, %c7 : tensor<3xf32> loc("layers.0.self_attn.q_a_layernorm")
    %c8 = stablehlo.constant dense<1.0e-06> : tensor<3xf32>
    %l0_self_attn_q_a_layernorm.add = stablehlo.add %l0_self_attn_q_a_layernorm.mul1, %c8 : tensor<3xf32> loc("layers.0.self_attn.q_a_layernorm")
    %l0_self_attn_q_a_layernorm.rsqrt = stablehlo.rsqrt %l0_self_attn_q_a_layernorm.add : tensor<3xf32> loc("layers.0.self_attn.q_a_layernorm")
    %l0_self_attn_q_a_layernorm.bc = stablehlo.broadcast_in_dim %l0_self_attn_q_a_layernorm.rsqrt, dims = [0] : (tensor<3xf32>) -> tensor<3x7xf32> loc("layers.0.self_attn.q_a_layernorm")
    %l0_self_attn_q_a_layernorm.mul2 = stablehlo.multiply %l0_self_attn_q_a_proj.add, %l0_self_attn_q_a_layernorm.bc : tensor<3x7xf32> loc("layers.0.self_attn.q_a_layernorm")
    %l0_self_attn_q_a_layernorm.bc1 = stablehlo.broadcast_in_dim %model.layers.0.self_attn.q_a_layernorm.weight, dims = [1] : (tensor<7xf32>) -> tensor<3x7xf32> loc("layers.0.self_attn.q_a_layernorm")
    %l0_self_attn_q_a_layernorm.mul3 = stablehlo.multiply %l0_self_attn_q_a_layernorm.mul2, %l0_self_attn_q_a_layernorm.bc1 : tensor<3x7xf32> loc("layers.0.self_attn.q_a_layernorm")
    %l0_self_attn_q_b_proj.dot = stablehlo.dot_general %l0_self_attn_q_a_layernorm.mul3, %model.layers.0.self_attn.q_b_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<3x7xf32>, tensor<42x7xf32>) -> tensor<3x42xf32> loc("layers.0.self_attn.q_b_proj")
    %l0_self_attn_q_b_proj.r = stablehlo.reshape %l0_self_attn_q_b_proj.dot : (tensor<3x42xf32>) -> tensor<3x6x7xf32> loc("layers.0.self_attn.q_b_proj")
    %l0_self_attn_kv_a_proj_with_mqa.dot = stablehlo.dot_general %l0_input_layernorm.mul3, %model.layers.0.self_attn.kv_a_proj_with_mqa.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<3x10xf32>, tensor<9x10xf32>) -> tensor<3x9xf32> loc("layers.0.self_attn.kv_a_proj_with_mqa")
    %l0_self_attn_kv_a_proj_with_mqa.bc = stablehlo.broadcast_in_dim %model.layers.0.self_attn.kv_a_proj_with_mqa.bias, dims = [1] : (tensor<9xf32>) -> tensor<3x9xf32> loc("layers.0.self_attn.kv_a_proj_with_mqa")
    %l0_self_attn_kv_a_proj_with_mqa.add = stablehlo.add %l0_self_attn_kv_a_proj_with_mqa.dot, %l0_self_attn_kv_a_proj_with_mqa.bc : tensor<3x9xf32> loc("layers.0.self_attn.kv_a_proj_with_mqa")
    %l0_self_attn_kv_a_layernorm.sl = stablehlo.slice %l0_self_attn_kv_a_proj_with_mqa.add [0:3, 0:5] : (tensor<3x9xf32>) -> tensor<3x5xf32> loc("layers.0.self_attn.kv_a_layernorm")
    %l0_self_attn_kv_a_layernorm.mul = stablehlo.multiply %l0_self_attn_kv_a_layernorm.sl, %l0_self_attn_kv_a_layernorm.sl : tensor<3x5xf32> loc("layers.0.self_attn.kv_a_layernorm")
    %l0_self_attn_kv_a_layernorm.red = stablehlo.reduce(%l0_self_attn_kv_a_layernorm.mul init: %c4) applies stablehlo.add across dimensions = [1] : (tensor<3x5xf32>, tensor<f32>) -> tensor<3xf32> loc("layers.0.self_attn.kv_a_layernorm")
    %c9 = stablehlo.constant dense<0.2> : tensor<3xf32>
    %l0_self_attn_kv_a_layernorm.mul1 = stablehlo.multiply %l0_self_attn_kv_a_layernorm.red, %c9 : tensor<3xf32> loc("layers.0.self_attn.kv_a_layernorm")
    %l0_self_attn_kv_a_layernorm.add = stablehlo.add %l0_self_attn_kv_a_layernorm.mul1, %c8 : tensor<3xf32> loc("layers.0.self_attn.kv_a_layernorm")
    %l0_self_attn_kv_a_layernorm.rsqrt = stablehlo.rsqrt %l0_self_attn_kv_a_layernorm.add : tensor<3xf32> loc("layers.0.self_attn.kv_a_layernorm")
    %l0_self_attn_kv_a_layernorm.bc = stablehlo.broadcast_in_dim %l0_self_attn_kv_a_layernorm.rsqrt, dims = [0] : (tensor<3xf32>) -> tensor<3x5xf32> loc("layers.0.self_attn.kv_a_layernorm")
    %l0_self_attn_kv_a_layernorm.mul2 = stablehlo.multiply %l0_self_attn_kv_a_layernorm.sl, %l0_self_attn_kv_a_layernorm.bc : tensor<3x5xf32> loc("layers.0.self_attn.kv_a_layernorm")
    %l0_self_attn_kv_a_layernorm.bc1 = stablehlo.broadcast_in_dim %model.layers.0.self_attn.kv_a_layernorm.weight, dims = [1] : (tensor<5xf32>) -> tensor<3x5xf32> loc("layers.0.self_attn.kv_a_layernorm")
    %l0_self_attn_kv_a_layernorm.mul3 = stablehlo.multiply %l0_self_attn_kv_a_layernorm.mul2, %l0_self_attn_kv_a_layernorm.bc1 : tensor<3x5xf32> loc("layers.0.self_attn.kv_a_layernorm")
    %l0_self_attn_q_rope.sl = stablehlo.slice %l0_self_attn_q_b_proj.r [0:3, 0:6, 3:7] : (tensor<3x6x7xf32>) -> tensor<3x6x4xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.r = stablehlo.reshape %l0_self_attn_q_rope.sl : (tensor<3x6x4xf32>) -> tensor<3x6x2x2xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.t = stablehlo.transpose %l0_self_attn_q_rope.r, dims = [0, 1, 3, 2] : (tensor<3x6x2x2xf32>) -> tensor<3x6x2x2xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.r1 = stablehlo.reshape %l0_self_attn_q_rope.t : (tensor<3x6x2x2xf32>) -> tensor<3x6x4xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.r2 = stablehlo.reshape %l0_self_attn_q_rope.r1 : (tensor<3x6x4xf32>) -> tensor<3x6x2x2xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.bc = stablehlo.broadcast_in_dim %c2, dims = [0, 2, 3] : (tensor<3x2x2xf32>) -> tensor<3x6x2x2xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.bc1 = stablehlo.broadcast_in_dim %c3, dims = [0, 2, 3] : (tensor<3x2x2xf32>) -> tensor<3x6x2x2xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.rev = stablehlo.reverse %l0_self_attn_q_rope.r2, dims = [2] : tensor<3x6x2x2xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.mul = stablehlo.multiply %l0_self_attn_q_rope.r2, %l0_self_attn_q_rope.bc : tensor<3x6x2x2xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.mul1 = stablehlo.multiply %l0_self_attn_q_rope.rev, %l0_self_attn_q_rope.bc1 : tensor<3x6x2x2xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.add = stablehlo.add %l0_self_attn_q_rope.mul, %l0_self_attn_q_rope.mul1 : tensor<3x6x2x2xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.r3 = stablehlo.reshape %l0_self_attn_q_rope.add : (tensor<3x6x2x2xf32>) -> tensor<3x6x4xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_k_rope.sl = stablehlo.slice %l0_self_attn_kv_a_proj_with_mqa.add [0:3, 5:9] : (tensor<3x9xf32>) -> tensor<3x4xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.r = stablehlo.reshape %l0_self_attn_k_rope.sl : (tensor<3x4xf32>) -> tensor<3x1x4xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.r1 = stablehlo.reshape %l0_self_attn_k_rope.r : (tensor<3x1x4xf32>) -> tensor<3x1x2x2xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.t = stablehlo.transpose %l0_self_attn_k_rope.r1, dims = [0, 1, 3, 2] : (tensor<3x1x2x2xf32>) -> tensor<3x1x2x2xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.r2 = stablehlo.reshape %l0_self_attn_k_rope.t : (tensor<3x1x2x2xf32>) -> tensor<3x1x4xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.r3 = stablehlo.reshape %l0_self_attn_k_rope.r2 : (tensor<3x1x4xf32>) -> tensor<3x1x2x2xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.bc = stablehlo.broadcast_in_dim %c2, dims = [0, 2, 3] : (tensor<3x2x2xf32>) -> tensor<3x1x2x2xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.bc1 = stablehlo.broadcast_in_dim %c3, dims = [0, 2, 3] : (tensor<3x2x2xf32>) -> tensor<3x1x2x2xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.rev = stablehlo.reverse %l0_self_attn_k_rope.r3, dims = [2] : tensor<3x1x2x2xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.mul = stablehlo.multiply %l0_self_attn_k_rope.r3, %l0_self_attn_k_rope.bc : tensor<3x1x2x2xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.mul1 = stablehlo.multiply %l0_self_attn_k_rope.rev, %l0_self_attn_k_rope.bc1 : tensor<3x1x2x2xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.add = stablehlo.add %l0_self_attn_k_rope.mul, %l0_self_attn_k_rope.mul1 : tensor<3x1x2x2xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.r4 = stablehlo.reshape %l0_self_attn_k_rope.add : (tensor<3x1x2x2xf32>) -> tensor<3x1x4xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn.r = stablehlo.reshape %l0_self_attn_kv_a_layernorm.mul3 : (tensor<3x5xf32>) -> tensor<3x1x5xf32> loc("layers.0.self_attn")
    %l0_self_attn_k_cache.t = stablehlo.transpose %l0_self_attn.r, dims = [1, 0, 2] : (tensor<3x1x5xf32>) -> tensor<1x3x5xf32> loc("layers.0.self_attn.k_cache")
    %c10 = stablehlo.constant dense<0> : tensor<i32>
    %l0_self_attn_k_cache.r = stablehlo.reshape %l0_self_attn_k_cache.t : (tensor<1x3x5xf32>) -> tensor<1x1x3x5xf32> loc("layers.0.self_attn.k_cache")
    %l0_self_attn_k_cache.dus = stablehlo.dynamic_update_slice %c, %l0_self_attn_k_cache.r, %c10, %c10, %c10, %c10 : (tensor<2x1x5x5xf32>, tensor<1x1x3x5xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x1x5x5xf32> loc("layers.0.self_attn.k_cache")
    %l0_self_attn_v_cache.t = stablehlo.transpose %l0_self_attn_k_rope.r4, dims = [1, 0, 2] : (tensor<3x1x4xf32>) -> tensor<1x3x4xf32> loc("layers.0.self_attn.v_cache")
    %l0_self_attn_v_cache.r = stablehlo.reshape %l0_self_attn_v_cache.t : (tensor<1x3x4xf32>) -> tensor<1x1x3x4xf32> loc("layers.0.self_attn.v_cache")
    %l0_self_attn_v_cache.dus = stablehlo.dynamic_update_slice %c1, %l0_self_attn_v_cache.r, %c10, %c10, %c10, %c10 : (tensor<2x1x5x4xf32>, tensor<1x1x3x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x1x5x4xf32> loc("layers.0.self_attn.v_cache")
    %l0_self_attn.r1 = stablehlo.reshape %model.layers.0.self_attn.kv_b_proj.weight : (tensor<30x5xf32>) -> tensor<6x5x5xf32> loc("layers.0.self_attn")
    %l0_self_attn.sl = stablehlo.slice %l0_self_attn_q_b_proj.r [0:3, 0:6, 0:3] : (tensor<3x6x7xf32>) -> tensor<3x6x3xf32> loc("layers.0.self_attn")
    %l0_self_attn.sl1 = stablehlo.slice %l0_self_attn.r1 [0:6, 0:3, 0:5] : (tensor<6x5x5xf32>) -> tensor<6x3x5xf32> loc("layers.0.self_attn")
    %l0_self_attn.sl2 = stablehlo.slice %l0_self_attn.r1 [0:6, 3:5, 0:5] : (tensor<6x5x5xf32>) -> tensor<6x2x5xf32> loc("layers.0.self_attn")
    %l0_self_attn_scores.dot = stablehlo.dot_general %l0_self_attn.sl, %l0_self_attn.sl1, batching_dims = [1] x [0], contracting_dims = [2] x [1], precision = [HIGHEST, HIGHEST] : (tensor<3x6x3xf32>, tensor<6x3x5xf32>) -> tensor<6x3x5xf32> loc("layers.0.self_attn.scores")
    %l0_self_attn_scores.t = stablehlo.transpose %l0_self_attn_scores.dot, dims = [1, 0, 2] : (tensor<6x3x5xf32>) -> tensor<3x6x5xf32> loc("layers.0.self_attn.scores")
    %l0_self_attn_scores.dot1 = stablehlo.dot_general %l0_self_attn_scores.t, %l0_self_attn_k_cache.t, contracting_dims = [2] x [2], precision = [HIGHEST, HIGHEST] : (tensor<3x6x5xf32>, tensor<1x3x5xf32>) -> tensor<3x6x1x3xf32> loc("layers.0.self_attn.scores")
    %l0_self_attn_scores.dot2 = stablehlo.dot_general %l0_self_attn_q_rope.r3, %l0_self_attn_v_cache.t, contracting_dims = [2] x [2], precision = [HIGHEST, HIGHEST] : (tensor<3x6x4xf32>, tensor<1x3x4xf32>) -> tensor<3x6x1x3xf32> loc("layers.0.self_attn.scores")
    %l0_self_attn_scores.add = stablehlo.add %l0_self_attn_scores.dot1, %l0_self_attn_scores.dot2 : tensor<3x6x1x3xf32> loc("layers.0.self_attn.scores")
    %l0_self_attn_scores.r = stablehlo.reshape %l0_self_attn_scores.add : (tensor<3x6x1x3xf32>) -> tensor<1x3x6x3xf32> loc("layers.0.self_attn.scores")
    %c11 = stablehlo.constant dense<0.5141771014461197> : tensor<1x3x6x3xf32>
    %l0_self_attn_scores.mul = stablehlo.multiply %l0_self_attn_scores.r, %c11 : tensor<1x3x6x3xf32> loc("layers.0.self_attn.scores")
    %l0_self_attn_scores.bc = stablehlo.broadcast_in_dim %cmp, dims = [1, 3] : (tensor<3x3xi1>) -> tensor<1x3x6x3xi1> loc("layers.0.self_attn.scores")
    %c12 = stablehlo.constant dense<0xFF800000> : tensor<1x3x6x3xf32>
    %l0_self_attn_scores.sel = stablehlo.select %l0_self_attn_scores.bc, %l0_self_attn_scores.mul, %c12 : tensor<1x3x6x3xi1>, tensor<1x3x6x3xf32> loc("layers.0.self_attn.scores")
    %c13 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %l0_self_attn_probs.red = stablehlo.reduce(%l0_self_attn_scores.sel init: %c13) applies stablehlo.maximum across dimensions = [3] : (tensor<1x3x6x3xf32>, tensor<f32>) -> tensor<1x3x6xf32> loc("layers.0.self_attn.probs")
    %l0_self_attn_probs.bc = stablehlo.broadcast_in_dim %l0_self_attn_probs.red, dims = [0, 1, 2] : (tensor<1x3x6xf32>) -> tensor<1x3x6x3xf32> loc("layers.0.self_attn.probs")
    %l0_self_attn_probs.sub = stablehlo.subtract %l0_self_attn_scores.sel, %l0_self_attn_probs.bc : tensor<1x3x6x3xf32> loc("layers.0.self_attn.probs")
    %l0_self_attn_probs.exponential = stablehlo.exponential %l0_self_attn_probs.sub : tensor<1x3x6x3xf32> loc("layers.0.self_attn.probs")
    %l0_self_attn_probs.red1 = stablehlo.reduce(%l0_self_attn_probs.exponential init: %c4) applies stablehlo.add across dimensions = [3] : (tensor<1x3x6x3xf32>, tensor<f32>) -> tensor<1x3x6xf32> loc("layers.0.self_attn.probs")
    %l0_self_attn_probs.bc1 = stablehlo.broadcast_in_dim %l0_self_attn_probs.red1, dims = [0, 1, 2] : (tensor<1x3x6xf32>) -> tensor<1x3x6x3xf32> loc("layers.0.self_attn.probs")
    %l0_self_attn_probs.div = stablehlo.divide %l0_self_attn_probs.exponential, %l0_self_attn_probs.bc1 : tensor<1x3x6x3xf32> loc("layers.0.self_attn.probs")
    %l0_self_attn_context.r = stablehlo.reshape %l0_self_attn_probs.div : (tensor<1x3x6x3xf32>) -> tensor<3x6x3xf32> loc("layers.0.self_attn.context")
    %l0_self_attn_context.r1 = stablehlo.reshape %l0_self_attn_k_cache.t : (tensor<1x3x5xf32>) -> tensor<3x5xf32> loc("layers.0.self_attn.context")
    %l0_self_attn_context.dot = stablehlo.dot_general %l0_self_attn_context.r, %l0_self_attn_context.r1, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<3x6x3xf32>, tensor<3x5xf32>) -> tensor<3x6x5xf32> loc("layers.0.self_attn.context")
    %l0_self_attn_context.dot1 = stablehlo.dot_general %l0_self_attn_context.dot, %l0_self_attn.sl2, batching_dims = [1] x [0], contracting_dims = [2] x [2], precision = [HIGHEST, HIGHEST] : (tensor<3x6x5xf32>, tensor<6x2x5xf32>) -> tensor<6x3x2xf32> loc("layers.0.self_attn.context")
    %l0_self_attn_context.t = stablehlo.transpose %l0_self_attn_context.dot1, dims = [1, 0, 2] : (tensor<6x3x2xf32>) -> tensor<3x6x2xf32> loc("layers.0.self_attn.context")
    %l0_self_attn_context.r2 = stablehlo.reshape %l0_self_attn_context.t : (tensor<3x6x2xf32>) -> tensor<3x12xf32> loc("layers.0.self_attn.context")
    %l0_self_attn_o_proj.dot = stablehlo.dot_general %l0_self_attn_context.r2, %model.layers.0.self_attn.o_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<3x12xf32>, tensor<10x12xf32>) -> tensor<3x10xf32> loc("layers.0.self_attn.o_proj")
    %l0_self_attn_o_proj.bc = stablehlo.broadcast_in_dim %model.layers.0.self_attn.o_proj.bias, dims = [1] : (tensor<10xf32>) -> tensor<3x10xf32> loc("layers.0.self_attn.o_proj")
    %l0_self_attn_o_proj.add = stablehlo.add %l0_self_attn_o_proj.dot, %l0_self_attn_o_proj.bc : tensor<3x10xf32> loc("layers.0.self_attn.o_proj")
    %l0.add = stablehlo.add %embed_tokens.rows, %l0_self_attn_o_proj.add : tensor<3x10xf32> loc("layers.0")
    %l0_post_attention_layernorm.mul = stablehlo.multiply %l0.add, %l0.add : tensor<3x10xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.red = stablehlo.reduce(%l0_post_attention_layernorm.mul init: %c4) applies stablehlo.add across dimensions = [1] : (tensor<3x10xf32>, tensor<f32>) -> tensor<3xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.mul1 = stablehlo.multiply %l0_post_attention_layernorm.red, %c5 : tensor<3xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.add = stablehlo.add %l0_post_attention_layernorm.mul1, %c6 : tensor<3xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.rsqrt = stablehlo.rsqrt %l0_post_attention_layernorm.add : tensor<3xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.bc = stablehlo.broadcast_in_dim %l0_post_attention_layernorm.rsqrt, dims = [0] : (tensor<3xf32>) -> tensor<3x10xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.mul2 = stablehlo.multiply %l0.add, %l0_post_attention_layernorm.bc : tensor<3x10xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.bc1 = stablehlo.broadcast_in_dim %model.layers.0.post_attention_layernorm.weight, dims = [1] : (tensor<10xf32>) -> tensor<3x10xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.mul3 = stablehlo.multiply %l0_post_attention_layernorm.mul2, %l0_post_attention_layernorm.bc1 : tensor<3x10xf32> loc("layers.0.post_attention_layernorm")
    %l0_mlp_gate_proj.dot = stablehlo.dot_general %l0_post_attention_layernorm.mul3, %model.layers.0.mlp.gate_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<3x10xf32>, tensor<14x10xf32>) -> tensor<3x14xf32> loc("layers.0.mlp.gate_proj")
    %l0_mlp_up_proj.dot = stablehlo.dot_general %l0_post_attention_layernorm.mul3, %model.layers.0.mlp.up_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<3x10xf32>, tensor<14x10xf32>) -> tensor<3x14xf32> loc("layers.0.mlp.up_proj")
    %l0_mlp_act.logistic = stablehlo.logistic %l0_mlp_gate_proj.dot : tensor<3x14xf32> loc("layers.0.mlp.act")
    %l0_mlp_act.mul = stablehlo.multiply %l0_mlp_gate_proj.dot, %l0_mlp_act.logistic : tensor<3x14xf32> loc("layers.0.mlp.act")
    %l0_mlp_act.mul1 = stablehlo.multiply %l0_mlp_act.mul, %l0_mlp_up_proj.dot : tensor<3x14xf32> loc("layers.0.mlp.act")
    %l0_mlp_down_proj.dot = stablehlo.dot_general %l0_mlp_act.mul1, %model.layers.0.mlp.down_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<3x14xf32>, tensor<10x14xf32>) -> tensor<3x10xf32> loc("layers.0.mlp.down_proj")
    %l0.add1 = stablehlo.add %l0.add, %l0_mlp_down_proj.dot : tensor<3x10xf32> loc("layers.0")
    %l1_input_layernorm.mul = stablehlo.multiply %l0.add1, %l0.add1 : tensor<3x10xf32> loc("layers.1.input_layernorm")
    %l1_input_layernorm.red = stablehlo.reduce(%l1_input_layernorm.mul init: %c4) applies stablehlo.add across dimensions = [1] : (tensor<3x10xf32>, tensor<f32>) -> tensor<3xf32> loc("layers.1.input_layernorm")
    %l1_input_layernorm.mul1 = stablehlo.multiply %l1_input_layernorm.red, %c5 : tensor<3xf32> loc("layers.1.input_layernorm")
    %l1_input_layernorm.add = stablehlo.add %l1_input_layernorm.mul1, %c6 : tensor<3xf32> loc("layers.1.input_layernorm")
    %l1_input_layernorm.rsqrt = stablehlo.rsqrt %l1_input_layernorm.add : tensor<3xf32> loc("layers.1.input_layernorm")
    %l1_input_layernorm.bc = stablehlo.broadcast_in_dim %l1_input_layernorm.rsqrt, dims = [0] : (tensor<3xf32>) -> tensor<3x10xf32> loc("layers.1.input_layernorm")
    %l1_input_layernorm.mul2 = stablehlo.multiply %l0.add1, %l1_input_layernorm.bc : tensor<3x10xf32> loc("layers.1.input_layernorm")
    %l1_input_layernorm.bc1 = stablehlo.broadcast_in_dim %model.layers.1.input_layernorm.weight, dims = [1] : (tensor<10xf32>) -> tensor<3x10xf32> loc("layers.1.input_layernorm")
    %l1_input_layernorm.mul3 = stablehlo.multiply %l1_input_layernorm.mul2, %l1_input_layernorm.bc1 : tensor<3x10xf32> loc("layers.1.input_layernorm")
    %l1_self_attn_q_a_proj.dot = stablehlo.dot_general %l1_input_layernorm.mul3, %model.layers.1.self_attn.q_a_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<3x10xf32>, tensor<7x10xf32>) -> tensor<3x7xf32> loc("layers.1.self_attn.q_a_proj")
    %l1_self_attn_q_a_proj.bc = stablehlo.broadcast_in_dim %model.layers.1.self_attn.q_a_proj.bias, dims = [1] : (tensor<7xf32>) -> tensor<3x7xf32> loc("layers.1.self_attn.q_a_proj")
    %l1_self_attn_q_a_proj.add = stablehlo.add %l1_self_attn_q_a_proj.dot, %l1_self_attn_q_a_proj.bc : tensor<3x7xf32> loc("layers.1.self_attn.q_a_proj")
    %l1_self_attn_q_a_layernorm.mul = stablehlo.multiply %l1_self_attn_q_a_proj.add, %l1_self_attn_q_a_proj.add : tensor<3x7xf32> loc("layers.1.self_attn.q_a_layernorm")
    %l1_self_attn_q_a_layernorm.red = stablehlo.reduce(%l1_self_attn_q_a_layernorm.mul init: %c4) applies stablehlo.add across dimensions = [1] : (tensor<3x7xf32>, tensor<f32>) -> tensor<3xf32> loc("layers.1.self_attn.q_a_layernorm")
    %l1_self_attn_q_a_layernorm.mul1 = stablehlo.multiply %l1_self_attn_q_a_layernorm.red, %c7 : tensor<3xf32> loc("layers.1.self_attn.q_a_layernorm")
    %l1_self_attn_q_a_layernorm.add = stablehlo.add %l1_self_attn_q_a_layernorm.mul1, %c8 : tensor<3xf32> loc("layers.1.self_attn.q_a_layernorm")
    %l1_self_attn_q_a_layernorm.rsqrt = stablehlo.rsqrt %l1_self_attn_q_a_layernorm.add : tensor<3xf32> loc("layers.1.self_attn.q_a_layernorm")
    %l1_self_attn_q_a_layernorm.bc = stablehlo.broadcast_in_dim %l1_self_attn_q_a_layernorm.rsqrt, dims = [0] : (tensor<3xf32>) -> tensor<3x7xf32> loc("layers.1.self_attn.q_a_layernorm")
    %l1_self_attn_q_a_layernorm.mul2 = stablehlo.multiply %l1_self_attn_q_a_proj.add, %l1_self_attn_q_a_layernorm.bc : tensor<3x7xf32> loc("layers.1.self_attn.q_a_layernorm")
    %l1_self_attn_q_a_layernorm.bc1 = stablehlo.broadcast_in_dim %model.layers.1.self_attn.q_a_layernorm.weight, dims = [1] : (tensor<7xf32>) -> tensor<3x7xf32> loc("layers.1.self_attn.q_a_layernorm")
    %l1_self_attn_q_a_layernorm.mul3 = stablehlo.multiply %l1_self_attn_q_a_layernorm.mul2, %l1_self_attn_q_a_layernorm.bc1 : tensor<3x7xf32> loc("layers.1.self_attn.q_a_layernorm")
    %l1_self_attn_q_b_proj.dot = stablehlo.dot_general %l1_self_attn_q_a_layernorm.mul3, %model.layers.1.self_attn.q_b_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<3x7xf32>, tensor<42x7xf32>) -> tensor<3x42xf32> loc("layers.1.self_attn.q_b_proj")
    %l1_self_attn_q_b_proj.r = stablehlo.reshape %l1_self_attn_q_b_proj.dot : (tensor<3x42xf32>) -> tensor<3x6x7xf32> loc("layers.1.self_attn.q_b_proj")
    %l1_self_attn_kv_a_proj_with_mqa.dot = stablehlo.dot_general %l1_input_layernorm.mul3, %model.layers.1.self_attn.kv_a_proj_with_mqa.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<3x10xf32>, tensor<9x10xf32>) -> tensor<3x9xf32> loc("layers.1.self_attn.kv_a_proj_with_mqa")
    %l1_self_attn_kv_a_proj_with_mqa.bc = stablehlo.broadcast_in_dim %model.layers.1.self_attn.kv_a_proj_with_mqa.bias, dims = [1] : (tensor<9xf32>) -> tensor<3x9xf32> loc("layers.1.self_attn.kv_a_proj_with_mqa")
    %l1_self_attn_kv_a_proj_with_mqa.add = stablehlo.add %l1_self_attn_kv_a_proj_with_mqa.dot, %l1_self_attn_kv_a_proj_with_mqa.bc : tensor<3x9xf32> loc("layers.1.self_attn.kv_a_proj_with_mqa")
    %l1_self_attn_kv_a_layernorm.sl = stablehlo.slice %l1_self_attn_kv_a_proj_with_mqa.add [0:3, 0:5] : (tensor<3x9xf32>) -> tensor<3x5xf32> loc("layers.1.self_attn.kv_a_layernorm")
    %l1_self_attn_kv_a_layernorm.mul = stablehlo.multiply %l1_self_attn_kv_a_layernorm.sl, %l1_self_attn_kv_a_layernorm.sl : tensor<3x5xf32> loc("layers.1.self_attn.kv_a_layernorm")
    %l1_self_attn_kv_a_layernorm.red = stablehlo.reduce(%l1_self_attn_kv_a_layernorm.mul init: %c4) applies stablehlo.add across dimensions = [1] : (tensor<3x5xf32>, tensor<f32>) -> tensor<3xf32> loc("layers.1.self_attn.kv_a_layernorm")
    %l1_self_attn_kv_a_layernorm.mul1 = stablehlo.multiply %l1_self_attn_kv_a_layernorm.red, %c9 : tensor<3xf32> loc("layers.1.self_attn.kv_a_layernorm")
    %l1_self_attn_kv_a_layernorm.add = stablehlo.add %l1_self_attn_kv_a_layernorm.mul1, %c8 : tensor<3xf32> loc("layers.1.self_attn.kv_a_layernorm")
    %l1_self_attn_kv_a_layernorm.rsqrt = stablehlo.rsqrt %l1_self_attn_kv_a_layernorm.add : tensor<3xf32> loc("layers.1.self_attn.kv_a_layernorm")
    %l1_self_attn_kv_a_layernorm.bc = stablehlo.broadcast_in_dim %l1_self_attn_kv_a_layernorm.rsqrt, dims = [0] : (tensor<3xf32>) -> tensor<3x5xf32> loc("layers.1.self_attn.kv_a_layernorm")
    %l1_self_attn_kv_a_layernorm.mul2 = stablehlo.multiply %l1_self_attn_kv_a_layernorm.sl, %l1_self_attn_kv_a_layernorm.bc : tensor<3x5xf32> loc("layers.1.self_attn.kv_a_layernorm")
    %l1_self_attn_kv_a_layernorm.bc1 = stablehlo.broadcast_in_dim %model.layers.1.self_attn.kv_a_layernorm.weight, dims = [1] : (tensor<5xf32>) -> tensor<3x5xf32> loc("layers.1.self_attn.kv_a_layernorm")
    %l1_self_attn_kv_a_layernorm.mul3 = stablehlo.multiply %l1_self_attn_kv_a_layernorm.mul2, %l1_self_attn_kv_a_layernorm.bc1 : tensor<3x5xf32> loc("layers.1.self_attn.kv_a_layernorm")
    %l1_self_attn_q_rope.sl = stablehlo.slice %l1_self_attn_q_b_proj.r [0:3, 0:6, 3:7] : (tensor<3x6x7xf32>) -> tensor<3x6x4xf32> loc("layers.1.self_attn.q_rope")
    %l1_self_attn_q_rope.r = stablehlo.reshape %l1_self_attn_q_rope.sl : (tensor<3x6x4xf32>) -> tensor<3x6x2x2xf32> loc("layers.1.self_attn.q_rope")
    %l1_self_attn_q_rope.t = stablehlo.transpose %l1_self_attn_q_rope.r, dims = [0, 1, 3, 2] : (tensor<3x6x2x2xf32>) -> tensor<3x6x2x2xf32> loc("layers.1.self_attn.q_rope")
    %l1_self_attn_q_rope.r1 = stablehlo.reshape %l1_self_attn_q_rope.t : (tensor<3x6x2x2xf32>) -> tensor<3x6x4xf32> loc("layers.1.self_attn.q_rope")
    %l1_self_attn_q_rope.r2 = stablehlo.reshape %l1_self_attn_q_rope.r1 : (tensor<3x6x4xf32>) -> tensor<3x6x2x2xf32> loc("layers.1.self_attn.q_rope")
    %l1_self_attn_q_rope.bc = stablehlo.broadcast_in_dim %c2, dims = [0, 2, 3] : (tensor<3x2x2xf32>) -> tensor<3x6x2x2xf32> loc("layers.1.self_attn.q_rope")
    %l1_self_attn_q_rope.bc1 = stablehlo.broadcast_in_dim %c3, dims = [0, 2, 3] : (tensor<3x2x2xf32>) -> tensor<3x6x2x2xf32> loc("layers.1.self_attn.q_rope")
    %l1_self_attn_q_rope.rev = stablehlo.reverse %l1_self_attn_q_rope.r2, dims = [2] : tensor<3x6x2x2xf32> loc("layers.1.self_attn.q_rope")
    %l1_self_attn_q_rope.mul = stablehlo.multiply %l1_self_attn_q_rope.r2, %l1_self_attn_q_rope.bc : tensor<3x6x2x2xf32> loc("layers.1.self_attn.q_rope")
    %l1_self_attn_q_rope.mul1 = stablehlo.multiply %l1_self_attn_q_rope.rev, %l1_self_attn_q_rope.bc1 : tensor<3x6x2x2xf32> loc("layers.1.self_attn.q_rope")
    %l1_self_attn_q_rope.add = stablehlo.add %l1_self_attn_q_rope.mul, %l1_self_attn_q_rope.mul1 : tensor<3x6x2x2xf32> loc("layers.1.self_attn.q_rope")
    %l1_self_attn_q_rope.r3 = stablehlo.reshape %l1_self_attn_q_rope.add : (tensor<3x6x2x2xf32>) -> tensor<3x6x4xf32> loc("layers.1.self_attn.q_rope")
    %l1_self_attn_k_rope.sl = stablehlo.slice %l1_self_attn_kv_a_proj_with_mqa.add [0:3, 5:9] : (tensor<3x9xf32>) -> tensor<3x4xf32> loc("layers.1.self_attn.k_rope")
    %l1_self_attn_k_rope.r = stablehlo.reshape %l1_self_attn_k_rope.sl : (tensor<3x4xf32>) -> tensor<3x1x4xf32> loc("layers.1.self_attn.k_rope")
    %l1_self_attn_k_rope.r1 = stablehlo.reshape %l1_self_attn_k_rope.r : (tensor<3x1x4xf32>) -> tensor<3x1x2x2xf32> loc("layers.1.self_attn.k_rope")
    %l1_self_attn_k_rope.t = stablehlo.transpose %l1_self_attn_k_rope.r1, dims = [0, 1, 3, 2] : (tensor<3x1x2x2xf32>) -> tensor<3x1x2x2xf32> loc("layers.1.self_attn.k_rope")
    %l1_self_attn_k_rope.r2 = stablehlo.reshape %l1_self_attn_k_rope.t : (tensor<3x1x2x2xf32>) -> tensor<3x1x4xf32> loc("layers.1.self_attn.k_rope")
    %l1_self_attn_k_rope.r3 = stablehlo.reshape %l1_self_attn_k_rope.r2 : (tensor<3x1x4xf32>) -> tensor<3x1x2x2xf32> loc("layers.1.self_attn.k_rope")
    %l1_self_attn_k_rope.bc = stablehlo.broadcast_in_dim %c2, dims = [0, 2, 3] : (tensor<3x2x2xf32>) -> tensor<3x1x2x2xf32> loc("layers.1.self_attn.k_rope")
    %l1_self_attn_k_rope.bc1 = stablehlo.broadcast_in_dim %c3, dims = [0, 2, 3] : (tensor<3x2x2xf32>) -> tensor<3x1x2x2xf32> loc("layers.1.self_attn.k_rope")
    %l1_self_attn_k_rope.rev = stablehlo.reverse %l1_self_attn_k_rope.r3, dims = [2] : tensor<3x1x2x2xf32> loc("layers.1.self_attn.k_rope")
    %l1_self_attn_k_rope.mul = stablehlo.multiply %l1_self_attn_k_rope.r3, %l1_self_attn_k_rope.bc : tensor<3x1x2x2xf32> loc("layers.1.self_attn.k_rope")
    %l1_self_attn_k_rope.mul1 = stablehlo.multiply %l1_self_attn_k_rope.rev, %l1_self_attn_k_rope.bc1 : tensor<3x1x2x2xf32> loc("layers.1.self_attn.k_rope")
    %l1_self_attn_k_rope.add = stablehlo.add %l1_self_attn_k_rope.mul, %l1_self_attn_k_rope.mul1 : tensor<3x1x2x2xf32> loc("layers.1.self_attn.k_rope")
    %l1_self_attn_k_rope.r4 = stablehlo.reshape %l1_self_attn_k_rope.add : (tensor<3x1x2x2xf32>) -> tensor<3x1x4xf32> loc("layers.1.self_attn.k_rope")
    %l1_self_attn.r = stablehlo.reshape %l1_self_attn_kv_a_layernorm.mul3 : (tensor<3x5xf32>) -> tensor<3x1x5xf32> loc("layers.1.self_attn")
    %l1_self_attn_k_cache.t = stablehlo.transpose %l1_self_attn.r, dims = [1, 0, 2] : (tensor<3x1x5xf32>) -> tensor<1x3x5xf32> loc("layers.1.self_attn.k_cache")
    %c14 = stablehlo.constant dense<1> : tensor<i32>
    %l1_self_attn_k_cache.r = stablehlo.reshape %l1_self_attn_k_cache.t : (tensor<1x3x5xf32>) -> tensor<1x1x3x5xf32> loc("layers.1.self_attn.k_cache")
    %l1_self_attn_k_cache.dus = stablehlo.dynamic_update_slice %l0_self_attn_k_cache.dus, %l1_self_attn_k_cache.r, %c14, %c10, %c10, %c10 : (tensor<2x1x5x5xf32>, tensor<1x1x3x5xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x1x5x5xf32> loc("layers.1.self_attn.k_cache")
    %l1_self_attn_v_cache.t = stablehlo.transpose %l1_self_attn_k_rope.r4, dims = [1, 0, 2] : (tensor<3x1x4xf32>) -> tensor<1x3x4xf32> loc("layers.1.self_attn.v_cache")
    %l1_self_attn_v_cache.r = stablehlo.reshape %l1_self_attn_v_cache.t : (tensor<1x3x4xf32>) -> tensor<1x1x3x4xf32> loc("layers.1.self_attn.v_cache")
    %l1_self_attn_v_cache.dus = stablehlo.dynamic_update_slice %l0_self_attn_v_cache.dus, %l1_self_attn_v_cache.r, %c14, %c10, %c10, %c10 : (tensor<2x1x5x4xf32>, tensor<1x1x3x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x1x5x4xf32> loc("layers.1.self_attn.v_cache")
    %l1_self_attn.r1 = stablehlo.reshape %model.layers.1.self_attn.kv_b_proj.weight : (tensor<30x5xf32>) -> tensor<6x5x5xf32> loc("layers.1.self_attn")
    %l1_self_attn.sl = stablehlo.slice %l1_self_attn_q_b_proj.r [0:3, 0:6, 0:3] : (tensor<3x6x7xf32>) -> tensor<3x6x3xf32> loc("layers.1.self_attn")
    %l1_self_attn.sl1 = stablehlo.slice %l1_self_attn.r1 [0:6, 0:3, 0:5] : (tensor<6x5x5xf32>) -> tensor<6x3x5xf32> loc("layers.1.self_attn")
    %l1_self_attn.sl2 = stablehlo.slice %l1_self_attn.r1 [0:6, 3:5, 0:5] : (tensor<6x5x5xf32>) -> tensor<6x2x5xf32> loc("layers.1.self_attn")
    %l1_self_attn_scores.dot = stablehlo.dot_general %l1_self_attn.sl, %l1_self_attn.sl1, batching_dims = [1] x [0], contracting_dims = [2] x [1], precision = [HIGHEST, HIGHEST] : (tensor<3x6x3xf32>, tensor<6x3x5xf32>) -> tensor<6x3x5xf32> loc("layers.1.self_attn.scores")
    %l1_self_attn_scores.t = stablehlo.transpose %l1_self_attn_scores.dot, dims = [1, 0, 2] : (tensor<6x3x5xf32>) -> tensor<3x6x5xf32> loc("layers.1.self_attn.scores")
    %l1_self_attn_scores.dot1 = stablehlo.dot_general %l1_self_attn_scores.t, %l1_self_attn_k_cache.t, contracting_dims = [2] x [2], precision = [HIGHEST, HIGHEST] : (tensor<3x6x5xf32>, tensor<1x3x5xf32>) -> tensor<3x6x1x3xf32> loc("layers.1.self_attn.scores")
    %l1_self_attn_scores.dot2 = stablehlo.dot_general %l1_self_attn_q_rope.r3, %l1_self_attn_v_cache.t, contracting_dims = [2] x [2], precision = [HIGHEST, HIGHEST] : (tensor<3x6x4xf32>, tensor<1x3x4xf32>) -> tensor<3x6x1x3xf32> loc("layers.1.self_attn.scores")
    %l1_self_attn_scores.add = stablehlo.add %l1_self_attn_scores.dot1, %l1_self_attn_scores.dot2 : tensor<3x6x1x3xf32> loc("layers.1.self_attn.scores")
    %l1_self_attn_scores.r = stablehlo.reshape %l1_self_attn_scores.add : (tensor<3x6x1x3xf32>) -> tensor<1x3x6x3xf32> loc("layers.1.self_attn.scores")
    %l1_self_attn_scores.mul = stablehlo.multiply %l1_self_attn_scores.r, %c11 : tensor<1x3x6x3xf32> loc("layers.1.self_attn.scores")
    %l1_self_attn_scores.bc = stablehlo.broadcast_in_dim %cmp, dims = [1, 3] : (tensor<3x3xi1>) -> tensor<1x3x6x3xi1> loc("layers.1.self_attn.scores")
    %l1_self_attn_scores.sel = stablehlo.select %l1_self_attn_scores.bc, %l1_self_attn_scores.mul, %c12 : tensor<1x3x6x3xi1>, tensor<1x3x6x3xf32> loc("layers.1.self_attn.scores")
    %l1_self_attn_probs.red = stablehlo.reduce(%l1_self_attn_scores.sel init: %c13) applies stablehlo.maximum across dimensions = [3] : (tensor<1x3x6x3xf32>, tensor<f32>) -> tensor<1x3x6xf32> loc("layers.1.self_attn.probs")
    %l1_self_attn_probs.bc = stablehlo.broadcast_in_dim %l1_self_attn_probs.red, dims = [0, 1, 2] : (tensor<1x3x6xf32>) -> tensor<1x3x6x3xf32> loc("layers.1.self_attn.probs")
    %l1_self_attn_probs.sub = stablehlo.subtract %l1_self_attn_scores.sel, %l1_self_attn_probs.bc : tensor<1x3x6x3xf32> loc("layers.1.self_attn.probs")
    %l1_self_attn_probs.exponential = stablehlo.exponential %l1_self_attn_probs.sub : tensor<1x3x6x3xf32> loc("layers.1.self_attn.probs")
    %l1_self_attn_probs.red1 = stablehlo.reduce(%l1_self_attn_probs.exponential init: %c4) applies stablehlo.add across dimensions = [3] : (tensor<1x3x6x3xf32>, tensor<f32>) -> tensor<1x3x6xf32> loc("layers.1.self_attn.probs")
    %l1_self_attn_probs.bc1 = stablehlo.broadcast_in_dim %l1_self_attn_probs.red1, dims = [0, 1, 2] : (tensor<1x3x6xf32>) -> tensor<1x3x6x3xf32> loc("layers.1.self_attn.probs")
    %l1_self_attn_probs.div = stablehlo.divide %l1_self_attn_probs.exponential, %l1_self_attn_probs.bc1 : tensor<1x3x6x3xf32> loc("layers.1.self_attn.probs")
    %l1_self_attn_context.r = stablehlo.reshape %l1_self_attn_probs.div : (tensor<1x3x6x3xf32>) -> tensor<3x6x3xf32> loc("layers.1.self_attn.context")
    %l1_self_attn_context.r1 = stablehlo.reshape %l1_self_attn_k_cache.t : (tensor<1x3x5xf32>) -> tensor<3x5xf32> loc("layers.1.self_attn.context")
    %l1_self_attn_context.dot = stablehlo.dot_general %l1_self_attn_context.r, %l1_self_attn_context.r1, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<3x6x3xf32>, tensor<3x5xf32>) -> tensor<3x6x5xf32> loc("layers.1.self_attn.context")
    %l1_self_attn_context.dot1 = stablehlo.dot_general %l1_self_attn_context.dot, %l1_self_attn.sl2, batching_dims = [1] x [0], contracting_dims = [2] x [2], precision = [HIGHEST, HIGHEST] : (tensor<3x6x5xf32>, tensor<6x2x5xf32>) -> tensor<6x3x2xf32> loc("layers.1.self_attn.context")
    %l1_self_attn_context.t = stablehlo.transpose %l1_self_attn_context.dot1, dims = [1, 0, 2] : (tensor<6x3x2xf32>) -> tensor<3x6x2xf32> loc("layers.1.self_attn.context")
    %l1_self_attn_context.r2 = stablehlo.reshape %l1_self_attn_context.t : (tensor<3x6x2xf32>) -> tensor<3x12xf32> loc("layers.1.self_attn.context")
    %l1_self_attn_o_proj.dot = stablehlo.dot_general %l1_self_attn_context.r2, %model.layers.1.self_attn.o_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<3x12xf32>, tensor<10x12xf32>) -> tensor<3x10xf32> loc("layers.1.self_attn.o_proj")
    %l1_self_attn_o_proj.bc = stablehlo.broadcast_in_dim %model.layers.1.self_attn.o_proj.bias, dims = [1] : (tensor<10xf32>) -> tensor<3x10xf32> loc("layers.1.self_attn.o_proj")
    %l1_self_attn_o_proj.add = stablehlo.add %l1_self_attn_o_proj.dot, %l1_self_attn_o_proj.bc : tensor<3x10xf32> loc("layers.1.self_attn.o_proj")
    %l1.add = stablehlo.add %l0.add1, %l1_self_attn_o_proj.add : tensor<3x10xf32> loc("layers.1")
    %l1_post_attention_layernorm.mul = stablehlo.multiply %l1.add, %l1.add : tensor<3x10xf32> loc("layers.1.post_attention_layernorm")
    %l1_post_attention_layernorm.red = stablehlo.reduce(%l1_post_attention_layernorm.mul init: %c4) applies stablehlo.add across dimensions = [1] : (tensor<3x10xf32>, tensor<f32>) -> tensor<3xf32> loc("layers.1.post_attention_layernorm")
    %l1_post_attention_layernorm.mul1 = stablehlo.multiply %l1_post_attention_layernorm.red, %c5 : tensor<3xf32> loc("layers.1.post_attention_layernorm")
    %l1_post_attention_layernorm.add = stablehlo.add %l1_post_attention_layernorm.mul1, %c6 : tensor<3xf32> loc("layers.1.post_attention_layernorm")
    %l1_post_attention_layernorm.rsqrt = stablehlo.rsqrt %l1_post_attention_layernorm.add : tensor<3xf32> loc("layers.1.post_attention_layernorm")
    %l1_post_attention_layernorm.bc = stablehlo.broadcast_in_dim %l1_post_attention_layernorm.rsqrt, dims = [0] : (tensor<3xf32>) -> tensor<3x10xf32> loc("layers.1.post_attention_layernorm")
    %l1_post_attention_layernorm.mul2 = stablehlo.multiply %l1.add, %l1_post_attention_layernorm.bc : tensor<3x10xf32> loc("layers.1.post_attention_layernorm")
    %l1_post_attention_layernorm.bc1 = stablehlo.broadcast_in_dim %model.layers.1.post_attention_layernorm.weight, dims = [1] : (tensor<10xf32>) -> tensor<3x10xf32> loc("layers.1.post_attention_layernorm")
    %l1_post_attention_layernorm.mul3 = stablehlo.multiply %l1_post_attention_layernorm.mul2, %l1_post_attention_layernorm.bc1 : tensor<3x10xf32> loc("layers.1.post_attention_layernorm")
    %l1_mlp_gate.dot = stablehlo.dot_general %l1_post_attention_layernorm.mul3, %model.layers.1.mlp.gate.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<3x10xf32>, tensor<6x10xf32>) -> tensor<3x6xf32> loc("layers.1.mlp.gate")
    %l1_mlp_routing.logistic = stablehlo.logistic %l1_mlp_gate.dot : tensor<3x6xf32> loc("layers.1.mlp.routing")
    %l1_mlp_routing.bc = stablehlo.broadcast_in_dim %model.layers.1.mlp.gate.e_score_correction_bias, dims = [1] : (tensor<6xf32>) -> tensor<3x6xf32> loc("layers.1.mlp.routing")
    %l1_mlp_routing.add = stablehlo.add %l1_mlp_routing.logistic, %l1_mlp_routing.bc : tensor<3x6xf32> loc("layers.1.mlp.routing")
    %l1_mlp_routing.r = stablehlo.reshape %l1_mlp_routing.add : (tensor<3x6xf32>) -> tensor<3x3x2xf32> loc("layers.1.mlp.routing")
    %l1_mlp_routing.b = stablehlo.optimization_barrier %l1_mlp_routing.r : tensor<3x3x2xf32> loc("layers.1.mlp.routing")
    %l1_mlp_routing.bc1 = stablehlo.broadcast_in_dim %l1_mlp_routing.b, dims = [0, 1, 2] : (tensor<3x3x2xf32>) -> tensor<3x3x2x2xf32> loc("layers.1.mlp.routing")
    %l1_mlp_routing.bc2 = stablehlo.broadcast_in_dim %l1_mlp_routing.b, dims = [0, 1, 3] : (tensor<3x3x2xf32>) -> tensor<3x3x2x2xf32> loc("layers.1.mlp.routing")
    %l1_mlp_routing.iota = stablehlo.iota dim = 3 : tensor<3x3x2x2xi32> loc("layers.1.mlp.routing")
    %l1_mlp_routing.iota1 = stablehlo.iota dim = 2 : tensor<3x3x2x2xi32> loc("layers.1.mlp.routing")
    %l1_mlp_routing.cmp = stablehlo.compare LT, %l1_mlp_routing.iota, %l1_mlp_routing.iota1, SIGNED : (tensor<3x3x2x2xi32>, tensor<3x3x2x2xi32>) -> tensor<3x3x2x2xi1> loc("layers.1.mlp.routing")
    %l1_mlp_routing.cmp1 = stablehlo.compare GE, %l1_mlp_routing.bc2, %l1_mlp_routing.bc1, FLOAT : (tensor<3x3x2x2xf32>, tensor<3x3x2x2xf32>) -> tensor<3x3x2x2xi1> loc("layers.1.mlp.routing")
    %l1_mlp_routing.cmp2 = stablehlo.compare GT, %l1_mlp_routing.bc2, %l1_mlp_routing.bc1, FLOAT : (tensor<3x3x2x2xf32>, tensor<3x3x2x2xf32>) -> tensor<3x3x2x2xi1> loc("layers.1.mlp.routing")
    %l1_mlp_routing.sel = stablehlo.select %l1_mlp_routing.cmp, %l1_mlp_routing.cmp1, %l1_mlp_routing.cmp2 : tensor<3x3x2x2xi1>, tensor<3x3x2x2xi1> loc("layers.1.mlp.routing")
    %l1_mlp_routing.as = stablehlo.convert %l1_mlp_routing.sel : (tensor<3x3x2x2xi1>) -> tensor<3x3x2x2xi32> loc("layers.1.mlp.routing")
    %l1_mlp_routing.red = stablehlo.reduce(%l1_mlp_routing.as init: %c10) applies stablehlo.add across dimensions = [3] : (tensor<3x3x2x2xi32>, tensor<i32>) -> tensor<3x3x2xi32> loc("layers.1.mlp.routing")
    %c15 = stablehlo.constant dense<2> : tensor<3x3x2xi32>
    %l1_mlp_routing.cmp3 = stablehlo.compare LT, %l1_mlp_routing.red, %c15, SIGNED : (tensor<3x3x2xi32>, tensor<3x3x2xi32>) -> tensor<3x3x2xi1> loc("layers.1.mlp.routing")
    %c16 = stablehlo.constant dense<0.0> : tensor<3x3x2xf32>
    %l1_mlp_routing.sel1 = stablehlo.select %l1_mlp_routing.cmp3, %l1_mlp_routing.r, %c16 : tensor<3x3x2xi1>, tensor<3x3x2xf32> loc("layers.1.mlp.routing")
    %l1_mlp_routing.red1 = stablehlo.reduce(%l1_mlp_routing.sel1 init: %c4) applies stablehlo.add across dimensions = [2] : (tensor<3x3x2xf32>, tensor<f32>) -> tensor<3x3xf32> loc("layers.1.mlp.routing")
    %l1_mlp_routing.b1 = stablehlo.optimization_barrier %l1_mlp_routing.red1 : tensor<3x3xf32> loc("layers.1.mlp.routing")
    %l1_mlp_routing.bc3 = stablehlo.broadcast_in_dim %l1_mlp_routing.b1, dims = [0, 1] : (tensor<3x3xf32>) -> tensor<3x3x3xf32> loc("layers.1.mlp.routing")
    %l1_mlp_routing.bc4 = stablehlo.broadcast_in_dim %l1_mlp_routing.b1, dims = [0, 2] : (tensor<3x3xf32>) -> tensor<3x3x3xf32> loc("layers.1.mlp.routing")
    %l1_mlp_routing.iota2 = stablehlo.iota dim = 2 : tensor<3x3x3xi32> loc("layers.1.mlp.routing")
    %l1_mlp_routing.iota3 = stablehlo.iota dim = 1 : tensor<3x3x3xi32> loc("layers.1.mlp.routing")
    %l1_mlp_routing.cmp4 = stablehlo.compare LT, %l1_mlp_routing.iota2, %l1_mlp_routing.iota3, SIGNED : (tensor<3x3x3xi32>, tensor<3x3x3xi32>) -> tensor<3x3x3xi1> loc("layers.1.mlp.routing")
    %l1_mlp_routing.cmp5 = stablehlo.compare GE, %l1_mlp_routing.bc4, %l1_mlp_routing.bc3, FLOAT : (tensor<3x3x3xf32>, tensor<3x3x3xf32>) -> tensor<3x3x3xi1> loc("layers.1.mlp.routing")
    %l1_mlp_routing.cmp6 = stablehlo.compare GT, %l1_mlp_routing.bc4, %l1_mlp_routing.bc3, FLOAT : (tensor<3x3x3xf32>, tensor<3x3x3xf32>) -> tensor<3x3x3xi1> loc("layers.1.mlp.routing")
    %l1_mlp_routing.sel2 = stablehlo.select %l1_mlp_routing.cmp4, %l1_mlp_routing.cmp5, %l1_mlp_routing.cmp6 : tensor<3x3x3xi1>, tensor<3x3x3xi1> loc("layers.1.mlp.routing")
    %l1_mlp_routing.as1 = stablehlo.convert %l1_mlp_routing.sel2 : (tensor<3x3x3xi1>) -> tensor<3x3x3xi32> loc("layers.1.mlp.routing")
    %l1_mlp_routing.red2 = stablehlo.reduce(%l1_mlp_routing.as1 init: %c10) applies stablehlo.add across dimensions = [2] : (tensor<3x3x3xi32>, tensor<i32>) -> tensor<3x3xi32> loc("layers.1.mlp.routing")
    %c17 = stablehlo.constant dense<2> : tensor<3x3xi32>
    %l1_mlp_routing.cmp7 = stablehlo.compare LT, %l1_mlp_routing.red2, %c17, SIGNED : (tensor<3x3xi32>, tensor<3x3xi32>) -> tensor<3x3xi1> loc("layers.1.mlp.routing")
    %l1_mlp_routing.bc5 = stablehlo.broadcast_in_dim %l1_mlp_routing.cmp7, dims = [0, 1] : (tensor<3x3xi1>) -> tensor<3x3x2xi1> loc("layers.1.mlp.routing")
    %c18 = stablehlo.constant dense<0xFF800000> : tensor<3x3x2xf32>
    %l1_mlp_routing.sel3 = stablehlo.select %l1_mlp_routing.bc5, %l1_mlp_routing.r, %c18 : tensor<3x3x2xi1>, tensor<3x3x2xf32> loc("layers.1.mlp.routing")
    %l1_mlp_routing.r1 = stablehlo.reshape %l1_mlp_routing.sel3 : (tensor<3x3x2xf32>) -> tensor<3x6xf32> loc("layers.1.mlp.routing")
    %l1_mlp_routing.b2 = stablehlo.optimization_barrier %l1_mlp_routing.r1 : tensor<3x6xf32> loc("layers.1.mlp.routing")
    %l1_mlp_routing.bc6 = stablehlo.broadcast_in_dim %l1_mlp_routing.b2, dims = [0, 1] : (tensor<3x6xf32>) -> tensor<3x6x6xf32> loc("layers.1.mlp.routing")
    %l1_mlp_routing.bc7 = stablehlo.broadcast_in_dim %l1_mlp_routing.b2, dims = [0, 2] : (tensor<3x6xf32>) -> tensor<3x6x6xf32> loc("layers.1.mlp.routing")
    %l1_mlp_routing.iota4 = stablehlo.iota dim = 2 : tensor<3x6x6xi32> loc("layers.1.mlp.routing")
    %l1_mlp_routing.iota5 = stablehlo.iota dim = 1 : tensor<3x6x6xi32> loc("layers.1.mlp.routing")
    %l1_mlp_routing.cmp8 = stablehlo.compare LT, %l1_mlp_routing.iota4, %l1_mlp_routing.iota5, SIGNED : (tensor<3x6x6xi32>, tensor<3x6x6xi32>) -> tensor<3x6x6xi1> loc("layers.1.mlp.routing")
    %l1_mlp_routing.cmp9 = stablehlo.compare GE, %l1_mlp_routing.bc7, %l1_mlp_routing.bc6, FLOAT : (tensor<3x6x6xf32>, tensor<3x6x6xf32>) -> tensor<3x6x6xi1> loc("layers.1.mlp.routing")
    %l1_mlp_routing.cmp10 = stablehlo.compare GT, %l1_mlp_routing.bc7, %l1_mlp_routing.bc6, FLOAT : (tensor<3x6x6xf32>, tensor<3x6x6xf32>) -> tensor<3x6x6xi1> loc("layers.1.mlp.routing")
    %l1_mlp_routing.sel4 = stablehlo.select %l1_mlp_routing.cmp8, %l1_mlp_routing.cmp9, %l1_mlp_routing.cmp10 : tensor<3x6x6xi1>, tensor<3x6x6xi1> loc("layers.1.mlp.routing")
    %l1_mlp_routing.as2 = stablehlo.convert %l1_mlp_routing.sel4 : (tensor<3x6x6xi1>) -> tensor<3x6x6xi32> loc("layers.1.mlp.routing")
    %l1_mlp_routing.red3 = stablehlo.reduce(%l1_mlp_routing.as2 init: %c10) applies stablehlo.add across dimensions = [2] : (tensor<3x6x6xi32>, tensor<i32>) -> tensor<3x6xi32> loc("layers.1.mlp.routing")
    %c19 = stablehlo.constant dense<2> : tensor<3x6xi32>
    %l1_mlp_routing.cmp11 = stablehlo.compare LT, %l1_mlp_routing.red3, %c19, SIGNED : (tensor<3x6xi32>, tensor<3x6xi32>) -> tensor<3x6xi1> loc("layers.1.mlp.routing")
    %c20 = stablehlo.constant dense<0.0> : tensor<3x6xf32>
    %l1_mlp_routing.sel5 = stablehlo.select %l1_mlp_routing.cmp11, %l1_mlp_routing.logistic, %c20 : tensor<3x6xi1>, tensor<3x6xf32> loc("layers.1.mlp.routing")
    %l1_mlp_routing.red4 = stablehlo.reduce(%l1_mlp_routing.sel5 init: %c4) applies stablehlo.add across dimensions = [1] : (tensor<3x6xf32>, tensor<f32>) -> tensor<3xf32> loc("layers.1.mlp.routing")
    %c21 = stablehlo.constant dense<1.0e-20> : tensor<3xf32>
    %l1_mlp_routing.add1 = stablehlo.add %l1_mlp_routing.red4, %c21 : tensor<3xf32> loc("layers.1.mlp.routing")
    %l1_mlp_routing.bc8 = stablehlo.broadcast_in_dim %l1_mlp_routing.add1, dims = [0] : (tensor<3xf32>) -> tensor<3x6xf32> loc("layers.1.mlp.routing")
    %l1_mlp_routing.div = stablehlo.divide %l1_mlp_routing.sel5, %l1_mlp_routing.bc8 : tensor<3x6xf32> loc("layers.1.mlp.routing")
    %c22 = stablehlo.constant dense<1.7> : tensor<3x6xf32>
    %l1_mlp_routing.mul = stablehlo.multiply %l1_mlp_routing.div, %c22 : tensor<3x6xf32> loc("layers.1.mlp.routing")
    %l1_mlp_experts.dot = stablehlo.dot_general %l1_post_attention_layernorm.mul3, %model.layers.1.mlp.experts.gate_up_proj, contracting_dims = [1] x [2], precision = [HIGHEST, HIGHEST] : (tensor<3x10xf32>, tensor<6x6x10xf32>) -> tensor<3x6x6xf32> loc("layers.1.mlp.experts")
    %l1_mlp_experts.sl = stablehlo.slice %l1_mlp_experts.dot [0:3, 0:6, 0:3] : (tensor<3x6x6xf32>) -> tensor<3x6x3xf32> loc("layers.1.mlp.experts")
    %l1_mlp_experts.sl1 = stablehlo.slice %l1_mlp_experts.dot [0:3, 0:6, 3:6] : (tensor<3x6x6xf32>) -> tensor<3x6x3xf32> loc("layers.1.mlp.experts")
    %l1_mlp_experts.logistic = stablehlo.logistic %l1_mlp_experts.sl : tensor<3x6x3xf32> loc("layers.1.mlp.experts")
    %l1_mlp_experts.mul = stablehlo.multiply %l1_mlp_experts.sl, %l1_mlp_experts.logistic : tensor<3x6x3xf32> loc("layers.1.mlp.experts")
    %l1_mlp_experts.mul1 = stablehlo.multiply %l1_mlp_experts.mul, %l1_mlp_experts.sl1 : tensor<3x6x3xf32> loc("layers.1.mlp.experts")
    %l1_mlp_experts.bc = stablehlo.broadcast_in_dim %l1_mlp_routing.mul, dims = [0, 1] : (tensor<3x6xf32>) -> tensor<3x6x3xf32> loc("layers.1.mlp.experts")
    %l1_mlp_experts.mul2 = stablehlo.multiply %l1_mlp_experts.mul1, %l1_mlp_experts.bc : tensor<3x6x3xf32> loc("layers.1.mlp.experts")
    %l1_mlp_experts.dot1 = stablehlo.dot_general %l1_mlp_experts.mul2, %model.layers.1.mlp.experts.down_proj, contracting_dims = [1, 2] x [0, 2], precision = [HIGHEST, HIGHEST] : (tensor<3x6x3xf32>, tensor<6x10x3xf32>) -> tensor<3x10xf32> loc("layers.1.mlp.experts")
    %l1_mlp_shared_experts_gate_proj.dot = stablehlo.dot_general %l1_post_attention_layernorm.mul3, %model.layers.1.mlp.shared_experts.gate_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<3x10xf32>, tensor<3x10xf32>) -> tensor<3x3xf32> loc("layers.1.mlp.shared_experts.gate_proj")
    %l1_mlp_shared_experts_up_proj.dot = stablehlo.dot_general %l1_post_attention_layernorm.mul3, %model.layers.1.mlp.shared_experts.up_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<3x10xf32>, tensor<3x10xf32>) -> tensor<3x3xf32> loc("layers.1.mlp.shared_experts.up_proj")
    %l1_mlp_shared_experts_act.logistic = stablehlo.logistic %l1_mlp_shared_experts_gate_proj.dot : tensor<3x3xf32> loc("layers.1.mlp.shared_experts.act")
    %l1_mlp_shared_experts_act.mul = stablehlo.multiply %l1_mlp_shared_experts_gate_proj.dot, %l1_mlp_shared_experts_act.logistic : tensor<3x3xf32> loc("layers.1.mlp.shared_experts.act")
    %l1_mlp_shared_experts_act.mul1 = stablehlo.multiply %l1_mlp_shared_experts_act.mul, %l1_mlp_shared_experts_up_proj.dot : tensor<3x3xf32> loc("layers.1.mlp.shared_experts.act")
    %l1_mlp_shared_experts_down_proj.dot = stablehlo.dot_general %l1_mlp_shared_experts_act.mul1, %model.layers.1.mlp.shared_experts.down_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<3x3xf32>, tensor<10x3xf32>) -> tensor<3x10xf32> loc("layers.1.mlp.shared_experts.down_proj")
    %l1_mlp.add = stablehlo.add %l1_mlp_experts.dot1, %l1_mlp_shared_experts_down_proj.dot : tensor<3x10xf32> loc("layers.1.mlp")
    %l1.add1 = stablehlo.add %l1.add, %l1_mlp.add : tensor<3x10xf32> loc("layers.1")
    %sub = stablehlo.subtract %length, %c14 : tensor<i32>
    %ds = stablehlo.dynamic_slice %l1.add1, %sub, %c10, sizes = [1, 10] : (tensor<3x10xf32>, tensor<i32>, tensor<i32>) -> tensor<1x10xf32>
    %norm.mul = stablehlo.multiply %ds, %ds : tensor<1x10xf32> loc("norm")
    %norm.red = stablehlo.reduce(%norm.mul init: %c4) applies stablehlo.add across dimensions = [1] : (tensor<1x10xf32>, tensor<f32>) -> tensor<1xf32> loc("norm")
    %c23 = stablehlo.constant dense<0.1> : tensor<1xf32>
    %norm.mul1 = stablehlo.multiply %norm.red, %c23 : tensor<1xf32> loc("norm")
    %c24 = stablehlo.constant dense<3.0e-05> : tensor<1xf32>
    %norm.add = stablehlo.add %norm.mul1, %c24 : tensor<1xf32> loc("norm")
    %norm.rsqrt = stablehlo.rsqrt %norm.add : tensor<1xf32> loc("norm")
    %norm.bc = stablehlo.broadcast_in_dim %norm.rsqrt, dims = [0] : (tensor<1xf32>) -> tensor<1x10xf32> loc("norm")
    %norm.mul2 = stablehlo.multiply %ds, %norm.bc : tensor<1x10xf32> loc("norm")
    %norm.bc1 = stablehlo.broadcast_in_dim %model.norm.weight, dims = [1] : (tensor<10xf32>) -> tensor<1x10xf32> loc("norm")
    %norm.mul3 = stablehlo.multiply %norm.mul2, %norm.bc1 : tensor<1x10xf32> loc("norm")
    %lm_head.dot = stablehlo.dot_general %norm.mul3, %lm_head.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x10xf32>, tensor<17x10xf32>) -> tensor<1x17xf32> loc("lm_head")
    %lm_head.r = stablehlo.reshape %lm_head.dot : (tensor<1x17xf32>) -> tensor<17xf32> loc("lm_head")
    func.return %lm_head.r, %l1_self_attn_k_cache.dus, %l1_self_attn_v_cache.dus : tensor<17xf32>, tensor<2x1x5x5xf32>, tensor<2x1x5x4xf32>
  }
}
