module @olmoe_decode_logits {
  func.func public @main(
    %model.embed_tokens.weight: tensor<17x24xf32>,
    %model.layers.0.input_layernorm.weight: tensor<24xf32>,
    %model.layers.0.self_attn.q_proj.weight: tensor<24x24xf32>,
    %model.layers.0.self_attn.k_proj.weight: tensor<8x24xf32>,
    %model.layers.0.self_attn.v_proj.weight: tensor<8x24xf32>,
    %model.layers.0.self_attn.q_norm.weight: tensor<24xf32>,
    %model.layers.0.self_attn.k_norm.weight: tensor<8xf32>,
    %model.layers.0.self_attn.o_proj.weight: tensor<24x24xf32>,
    %model.layers.0.post_attention_layernorm.weight: tensor<24xf32>,
    %model.layers.0.mlp.gate.weight: tensor<4x24xf32>,
    %model.layers.0.mlp.experts.gate_up_proj: tensor<4x6x24xf32>,
    %model.layers.0.mlp.experts.down_proj: tensor<4x24x3xf32>,
    %model.norm.weight: tensor<24xf32>,
    %lm_head.weight: tensor<17x24xf32>,
    %token: tensor<i32>,
    %position: tensor<i32>,
    %k_cache: tensor<1x2x5x4xf32> {tf.aliasing_output = 1 : i32},
    %v_cache: tensor<1x2x5x4xf32> {tf.aliasing_output = 2 : i32}
  ) -> (tensor<17xf32>, tensor<1x2x5x4xf32>, tensor<1x2x5x4xf32>) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %max = stablehlo.maximum %position, %c : tensor<i32>
    %sub = stablehlo.subtract %max, %position : tensor<i32>
    %iota = stablehlo.iota dim = 0 : tensor<1xi32>
    %bc = stablehlo.broadcast_in_dim %sub, dims = [] : (tensor<i32>) -> tensor<1xi32>
    %add = stablehlo.add %iota, %bc : tensor<1xi32>
    %iota1 = stablehlo.iota dim = 0 : tensor<5xi32>
    %bc1 = stablehlo.broadcast_in_dim %position, dims = [] : (tensor<i32>) -> tensor<5xi32>
    %cmp = stablehlo.compare LE, %iota1, %bc1, SIGNED : (tensor<5xi32>, tensor<5xi32>) -> tensor<5xi1>
    %c1 = stablehlo.constant dense<"0x0000803F0000803F0000803F0000803F40510A3FB9FC7F3F40510A3FB9FC7F3F3311D5BEE5F27F3F3311D5BEE5F27F3F26707DBF83E27F3F26707DBF83E27F3F305527BF94CB7F3F305527BF94CB7F3F"> : tensor<5x2x2xf32>
    %ds = stablehlo.dynamic_slice %c1, %position, %c, %c, sizes = [1, 2, 2] : (tensor<5x2x2xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x2xf32>
    %c2 = stablehlo.constant dense<"0x00000080000000800000000000000000A46A57BF57D623BCA46A573F57D6233CB7C768BF3ED4A3BCB7C7683F3ED4A33CC38110BE20B9F5BCC381103E20B9F53CCFBD413FDBCB23BDCFBD41BFDBCB233D"> : tensor<5x2x2xf32>
    %ds1 = stablehlo.dynamic_slice %c2, %position, %c, %c, sizes = [1, 2, 2] : (tensor<5x2x2xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x2xf32>
    %embed_tokens.ds = stablehlo.dynamic_slice %model.embed_tokens.weight, %token, %c, sizes = [1, 24] : (tensor<17x24xf32>, tensor<i32>, tensor<i32>) -> tensor<1x24xf32> loc("embed_tokens")
    %l0_input_layernorm.mul = stablehlo.multiply %embed_tokens.ds, %embed_tokens.ds : tensor<1x24xf32> loc("layers.0.input_layernorm")
    %c3 = stablehlo.constant dense<0.0> : tensor<f32>
    %l0_input_layernorm.red = stablehlo.reduce(%l0_input_layernorm.mul init: %c3) applies stablehlo.add across dimensions = [1] : (tensor<1x24xf32>, tensor<f32>) -> tensor<1xf32> loc("layers.0.input_layernorm")
    %c4 = stablehlo.constant dense<0.041666666666666664> : tensor<1xf32>
    %l0_input_layernorm.mul1 = stablehlo.multiply %l0_input_layernorm.red, %c4 : tensor<1xf32> loc("layers.0.input_layernorm")
    %c5 = stablehlo.constant dense<3.0e-05> : tensor<1xf32>
    %l0_input_layernorm.add = stablehlo.add %l0_input_layernorm.mul1, %c5 : tensor<1xf32> loc("layers.0.input_layernorm")
    %l0_input_layernorm.rsqrt = stablehlo.rsqrt %l0_input_layernorm.add : tensor<1xf32> loc("layers.0.input_layernorm")
    %l0_input_layernorm.bc = stablehlo.broadcast_in_dim %l0_input_layernorm.rsqrt, dims = [0] : (tensor<1xf32>) -> tensor<1x24xf32> loc("layers.0.input_layernorm")
    %l0_input_layernorm.mul2 = stablehlo.multiply %embed_tokens.ds, %l0_input_layernorm.bc : tensor<1x24xf32> loc("layers.0.input_layernorm")
    %l0_input_layernorm.bc1 = stablehlo.broadcast_in_dim %model.layers.0.input_layernorm.weight, dims = [1] : (tensor<24xf32>) -> tensor<1x24xf32> loc("layers.0.input_layernorm")
    %l0_input_layernorm.mul3 = stablehlo.multiply %l0_input_layernorm.mul2, %l0_input_layernorm.bc1 : tensor<1x24xf32> loc("layers.0.input_layernorm")
    %l0_self_attn_q_proj.dot = stablehlo.dot_general %l0_input_layernorm.mul3, %model.layers.0.self_attn.q_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x24xf32>, tensor<24x24xf32>) -> tensor<1x24xf32> loc("layers.0.self_attn.q_proj")
    %l0_self_attn_q_proj.r = stablehlo.reshape %l0_self_attn_q_proj.dot : (tensor<1x24xf32>) -> tensor<1x6x4xf32> loc("layers.0.self_attn.q_proj")
    %l0_self_attn_k_proj.dot = stablehlo.dot_general %l0_input_layernorm.mul3, %model.layers.0.self_attn.k_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x24xf32>, tensor<8x24xf32>) -> tensor<1x8xf32> loc("layers.0.self_attn.k_proj")
    %l0_self_attn_k_proj.r = stablehlo.reshape %l0_self_attn_k_proj.dot : (tensor<1x8xf32>) -> tensor<1x2x4xf32> loc("layers.0.self_attn.k_proj")
    %l0_self_attn_v_proj.dot = stablehlo.dot_general %l0_input_layernorm.mul3, %model.layers.0.self_attn.v_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x24xf32>, tensor<8x24xf32>) -> tensor<1x8xf32> loc("layers.0.self_attn.v_proj")
    %l0_self_attn_v_proj.r = stablehlo.reshape %l0_self_attn_v_proj.dot : (tensor<1x8xf32>) -> tensor<1x2x4xf32> loc("layers.0.self_attn.v_proj")
    %l0_self_attn_q_norm.r = stablehlo.reshape %l0_self_attn_q_proj.r : (tensor<1x6x4xf32>) -> tensor<1x24xf32> loc("layers.0.self_attn.q_norm")
    %l0_self_attn_q_norm.mul = stablehlo.multiply %l0_self_attn_q_norm.r, %l0_self_attn_q_norm.r : tensor<1x24xf32> loc("layers.0.self_attn.q_norm")
    %l0_self_attn_q_norm.red = stablehlo.reduce(%l0_self_attn_q_norm.mul init: %c3) applies stablehlo.add across dimensions = [1] : (tensor<1x24xf32>, tensor<f32>) -> tensor<1xf32> loc("layers.0.self_attn.q_norm")
    %l0_self_attn_q_norm.mul1 = stablehlo.multiply %l0_self_attn_q_norm.red, %c4 : tensor<1xf32> loc("layers.0.self_attn.q_norm")
    %l0_self_attn_q_norm.add = stablehlo.add %l0_self_attn_q_norm.mul1, %c5 : tensor<1xf32> loc("layers.0.self_attn.q_norm")
    %l0_self_attn_q_norm.rsqrt = stablehlo.rsqrt %l0_self_attn_q_norm.add : tensor<1xf32> loc("layers.0.self_attn.q_norm")
    %l0_self_attn_q_norm.bc = stablehlo.broadcast_in_dim %l0_self_attn_q_norm.rsqrt, dims = [0] : (tensor<1xf32>) -> tensor<1x24xf32> loc("layers.0.self_attn.q_norm")
    %l0_self_attn_q_norm.mul2 = stablehlo.multiply %l0_self_attn_q_norm.r, %l0_self_attn_q_norm.bc : tensor<1x24xf32> loc("layers.0.self_attn.q_norm")
    %l0_self_attn_q_norm.bc1 = stablehlo.broadcast_in_dim %model.layers.0.self_attn.q_norm.weight, dims = [1] : (tensor<24xf32>) -> tensor<1x24xf32> loc("layers.0.self_attn.q_norm")
    %l0_self_attn_q_norm.mul3 = stablehlo.multiply %l0_self_attn_q_norm.mul2, %l0_self_attn_q_norm.bc1 : tensor<1x24xf32> loc("layers.0.self_attn.q_norm")
    %l0_self_attn_q_norm.r1 = stablehlo.reshape %l0_self_attn_q_norm.mul3 : (tensor<1x24xf32>) -> tensor<1x6x4xf32> loc("layers.0.self_attn.q_norm")
    %l0_self_attn_k_norm.r = stablehlo.reshape %l0_self_attn_k_proj.r : (tensor<1x2x4xf32>) -> tensor<1x8xf32> loc("layers.0.self_attn.k_norm")
    %l0_self_attn_k_norm.mul = stablehlo.multiply %l0_self_attn_k_norm.r, %l0_self_attn_k_norm.r : tensor<1x8xf32> loc("layers.0.self_attn.k_norm")
    %l0_self_attn_k_norm.red = stablehlo.reduce(%l0_self_attn_k_norm.mul init: %c3) applies stablehlo.add across dimensions = [1] : (tensor<1x8xf32>, tensor<f32>) -> tensor<1xf32> loc("layers.0.self_attn.k_norm")
    %c6 = stablehlo.constant dense<0.125> : tensor<1xf32>
    %l0_self_attn_k_norm.mul1 = stablehlo.multiply %l0_self_attn_k_norm.red, %c6 : tensor<1xf32> loc("layers.0.self_attn.k_norm")
    %l0_self_attn_k_norm.add = stablehlo.add %l0_self_attn_k_norm.mul1, %c5 : tensor<1xf32> loc("layers.0.self_attn.k_norm")
    %l0_self_attn_k_norm.rsqrt = stablehlo.rsqrt %l0_self_attn_k_norm.add : tensor<1xf32> loc("layers.0.self_attn.k_norm")
    %l0_self_attn_k_norm.bc = stablehlo.broadcast_in_dim %l0_self_attn_k_norm.rsqrt, dims = [0] : (tensor<1xf32>) -> tensor<1x8xf32> loc("layers.0.self_attn.k_norm")
    %l0_self_attn_k_norm.mul2 = stablehlo.multiply %l0_self_attn_k_norm.r, %l0_self_attn_k_norm.bc : tensor<1x8xf32> loc("layers.0.self_attn.k_norm")
    %l0_self_attn_k_norm.bc1 = stablehlo.broadcast_in_dim %model.layers.0.self_attn.k_norm.weight, dims = [1] : (tensor<8xf32>) -> tensor<1x8xf32> loc("layers.0.self_attn.k_norm")
    %l0_self_attn_k_norm.mul3 = stablehlo.multiply %l0_self_attn_k_norm.mul2, %l0_self_attn_k_norm.bc1 : tensor<1x8xf32> loc("layers.0.self_attn.k_norm")
    %l0_self_attn_k_norm.r1 = stablehlo.reshape %l0_self_attn_k_norm.mul3 : (tensor<1x8xf32>) -> tensor<1x2x4xf32> loc("layers.0.self_attn.k_norm")
    %c7 = stablehlo.constant dense<-1.5> : tensor<1x6x4xf32>
    %l0_self_attn.max = stablehlo.maximum %l0_self_attn_q_norm.r1, %c7 : tensor<1x6x4xf32> loc("layers.0.self_attn")
    %c8 = stablehlo.constant dense<1.5> : tensor<1x6x4xf32>
    %l0_self_attn.min = stablehlo.minimum %l0_self_attn.max, %c8 : tensor<1x6x4xf32> loc("layers.0.self_attn")
    %c9 = stablehlo.constant dense<-1.5> : tensor<1x2x4xf32>
    %l0_self_attn.max1 = stablehlo.maximum %l0_self_attn_k_norm.r1, %c9 : tensor<1x2x4xf32> loc("layers.0.self_attn")
    %c10 = stablehlo.constant dense<1.5> : tensor<1x2x4xf32>
    %l0_self_attn.min1 = stablehlo.minimum %l0_self_attn.max1, %c10 : tensor<1x2x4xf32> loc("layers.0.self_attn")
    %l0_self_attn.max2 = stablehlo.maximum %l0_self_attn_v_proj.r, %c9 : tensor<1x2x4xf32> loc("layers.0.self_attn")
    %l0_self_attn.min2 = stablehlo.minimum %l0_self_attn.max2, %c10 : tensor<1x2x4xf32> loc("layers.0.self_attn")
    %l0_self_attn_q_rope.r = stablehlo.reshape %l0_self_attn.min : (tensor<1x6x4xf32>) -> tensor<1x6x2x2xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.bc = stablehlo.broadcast_in_dim %ds, dims = [0, 2, 3] : (tensor<1x2x2xf32>) -> tensor<1x6x2x2xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.bc1 = stablehlo.broadcast_in_dim %ds1, dims = [0, 2, 3] : (tensor<1x2x2xf32>) -> tensor<1x6x2x2xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.rev = stablehlo.reverse %l0_self_attn_q_rope.r, dims = [2] : tensor<1x6x2x2xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.mul = stablehlo.multiply %l0_self_attn_q_rope.r, %l0_self_attn_q_rope.bc : tensor<1x6x2x2xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.mul1 = stablehlo.multiply %l0_self_attn_q_rope.rev, %l0_self_attn_q_rope.bc1 : tensor<1x6x2x2xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.add = stablehlo.add %l0_self_attn_q_rope.mul, %l0_self_attn_q_rope.mul1 : tensor<1x6x2x2xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.r1 = stablehlo.reshape %l0_self_attn_q_rope.add : (tensor<1x6x2x2xf32>) -> tensor<1x6x4xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_k_rope.r = stablehlo.reshape %l0_self_attn.min1 : (tensor<1x2x4xf32>) -> tensor<1x2x2x2xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.bc = stablehlo.broadcast_in_dim %ds, dims = [0, 2, 3] : (tensor<1x2x2xf32>) -> tensor<1x2x2x2xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.bc1 = stablehlo.broadcast_in_dim %ds1, dims = [0, 2, 3] : (tensor<1x2x2xf32>) -> tensor<1x2x2x2xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.rev = stablehlo.reverse %l0_self_attn_k_rope.r, dims = [2] : tensor<1x2x2x2xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.mul = stablehlo.multiply %l0_self_attn_k_rope.r, %l0_self_attn_k_rope.bc : tensor<1x2x2x2xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.mul1 = stablehlo.multiply %l0_self_attn_k_rope.rev, %l0_self_attn_k_rope.bc1 : tensor<1x2x2x2xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.add = stablehlo.add %l0_self_attn_k_rope.mul, %l0_self_attn_k_rope.mul1 : tensor<1x2x2x2xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.r1 = stablehlo.reshape %l0_self_attn_k_rope.add : (tensor<1x2x2x2xf32>) -> tensor<1x2x4xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_cache.ds = stablehlo.dynamic_slice %add, %c, sizes = [1] : (tensor<1xi32>, tensor<i32>) -> tensor<1xi32> loc("layers.0.self_attn.k_cache")
    %l0_self_attn_k_cache.r = stablehlo.reshape %l0_self_attn_k_cache.ds : (tensor<1xi32>) -> tensor<i32> loc("layers.0.self_attn.k_cache")
    %l0_self_attn_k_cache.r1 = stablehlo.reshape %l0_self_attn_k_rope.r1 : (tensor<1x2x4xf32>) -> tensor<1x2x1x4xf32> loc("layers.0.self_attn.k_cache")
    %l0_self_attn_k_cache.dus = stablehlo.dynamic_update_slice %k_cache, %l0_self_attn_k_cache.r1, %l0_self_attn_k_cache.r, %c, %position, %c : (tensor<1x2x5x4xf32>, tensor<1x2x1x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x5x4xf32> loc("layers.0.self_attn.k_cache")
    %l0_self_attn_k_cache.ds1 = stablehlo.dynamic_slice %l0_self_attn_k_cache.dus, %l0_self_attn_k_cache.r, %c, %c, %c, sizes = [1, 2, 5, 4] : (tensor<1x2x5x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x5x4xf32> loc("layers.0.self_attn.k_cache")
    %l0_self_attn_k_cache.r2 = stablehlo.reshape %l0_self_attn_k_cache.ds1 : (tensor<1x2x5x4xf32>) -> tensor<2x5x4xf32> loc("layers.0.self_attn.k_cache")
    %l0_self_attn_v_cache.ds = stablehlo.dynamic_slice %add, %c, sizes = [1] : (tensor<1xi32>, tensor<i32>) -> tensor<1xi32> loc("layers.0.self_attn.v_cache")
    %l0_self_attn_v_cache.r = stablehlo.reshape %l0_self_attn_v_cache.ds : (tensor<1xi32>) -> tensor<i32> loc("layers.0.self_attn.v_cache")
    %l0_self_attn_v_cache.r1 = stablehlo.reshape %l0_self_attn.min2 : (tensor<1x2x4xf32>) -> tensor<1x2x1x4xf32> loc("layers.0.self_attn.v_cache")
    %l0_self_attn_v_cache.dus = stablehlo.dynamic_update_slice %v_cache, %l0_self_attn_v_cache.r1, %l0_self_attn_v_cache.r, %c, %position, %c : (tensor<1x2x5x4xf32>, tensor<1x2x1x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x5x4xf32> loc("layers.0.self_attn.v_cache")
    %l0_self_attn_v_cache.ds1 = stablehlo.dynamic_slice %l0_self_attn_v_cache.dus, %l0_self_attn_v_cache.r, %c, %c, %c, sizes = [1, 2, 5, 4] : (tensor<1x2x5x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x5x4xf32> loc("layers.0.self_attn.v_cache")
    %l0_self_attn_v_cache.r2 = stablehlo.reshape %l0_self_attn_v_cache.ds1 : (tensor<1x2x5x4xf32>) -> tensor<2x5x4xf32> loc("layers.0.self_attn.v_cache")
    %l0_self_attn_scores.r = stablehlo.reshape %l0_self_attn_q_rope.r1 : (tensor<1x6x4xf32>) -> tensor<1x2x3x4xf32> loc("layers.0.self_attn.scores")
    %l0_self_attn_scores.dot = stablehlo.dot_general %l0_self_attn_scores.r, %l0_self_attn_k_cache.r2, batching_dims = [1] x [0], contracting_dims = [3] x [2], precision = [HIGHEST, HIGHEST] : (tensor<1x2x3x4xf32>, tensor<2x5x4xf32>) -> tensor<2x1x3x5xf32> loc("layers.0.self_attn.scores")
    %c11 = stablehlo.constant dense<0.5> : tensor<2x1x3x5xf32>
    %l0_self_attn_scores.mul = stablehlo.multiply %l0_self_attn_scores.dot, %c11 : tensor<2x1x3x5xf32> loc("layers.0.self_attn.scores")
    %l0_self_attn_scores.bc = stablehlo.broadcast_in_dim %cmp, dims = [3] : (tensor<5xi1>) -> tensor<2x1x3x5xi1> loc("layers.0.self_attn.scores")
    %c12 = stablehlo.constant dense<0xFF800000> : tensor<2x1x3x5xf32>
    %l0_self_attn_scores.sel = stablehlo.select %l0_self_attn_scores.bc, %l0_self_attn_scores.mul, %c12 : tensor<2x1x3x5xi1>, tensor<2x1x3x5xf32> loc("layers.0.self_attn.scores")
    %c13 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %l0_self_attn_probs.red = stablehlo.reduce(%l0_self_attn_scores.sel init: %c13) applies stablehlo.maximum across dimensions = [3] : (tensor<2x1x3x5xf32>, tensor<f32>) -> tensor<2x1x3xf32> loc("layers.0.self_attn.probs")
    %l0_self_attn_probs.bc = stablehlo.broadcast_in_dim %l0_self_attn_probs.red, dims = [0, 1, 2] : (tensor<2x1x3xf32>) -> tensor<2x1x3x5xf32> loc("layers.0.self_attn.probs")
    %l0_self_attn_probs.sub = stablehlo.subtract %l0_self_attn_scores.sel, %l0_self_attn_probs.bc : tensor<2x1x3x5xf32> loc("layers.0.self_attn.probs")
    %l0_self_attn_probs.exponential = stablehlo.exponential %l0_self_attn_probs.sub : tensor<2x1x3x5xf32> loc("layers.0.self_attn.probs")
    %l0_self_attn_probs.red1 = stablehlo.reduce(%l0_self_attn_probs.exponential init: %c3) applies stablehlo.add across dimensions = [3] : (tensor<2x1x3x5xf32>, tensor<f32>) -> tensor<2x1x3xf32> loc("layers.0.self_attn.probs")
    %l0_self_attn_probs.bc1 = stablehlo.broadcast_in_dim %l0_self_attn_probs.red1, dims = [0, 1, 2] : (tensor<2x1x3xf32>) -> tensor<2x1x3x5xf32> loc("layers.0.self_attn.probs")
    %l0_self_attn_probs.div = stablehlo.divide %l0_self_attn_probs.exponential, %l0_self_attn_probs.bc1 : tensor<2x1x3x5xf32> loc("layers.0.self_attn.probs")
    %l0_self_attn_context.dot = stablehlo.dot_general %l0_self_attn_probs.div, %l0_self_attn_v_cache.r2, batching_dims = [0] x [0], contracting_dims = [3] x [1], precision = [HIGHEST, HIGHEST] : (tensor<2x1x3x5xf32>, tensor<2x5x4xf32>) -> tensor<2x1x3x4xf32> loc("layers.0.self_attn.context")
    %l0_self_attn_context.r = stablehlo.reshape %l0_self_attn_context.dot : (tensor<2x1x3x4xf32>) -> tensor<1x24xf32> loc("layers.0.self_attn.context")
    %l0_self_attn_o_proj.dot = stablehlo.dot_general %l0_self_attn_context.r, %model.layers.0.self_attn.o_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x24xf32>, tensor<24x24xf32>) -> tensor<1x24xf32> loc("layers.0.self_attn.o_proj")
    %l0.add = stablehlo.add %embed_tokens.ds, %l0_self_attn_o_proj.dot : tensor<1x24xf32> loc("layers.0")
    %l0_post_attention_layernorm.mul = stablehlo.multiply %l0.add, %l0.add : tensor<1x24xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.red = stablehlo.reduce(%l0_post_attention_layernorm.mul init: %c3) applies stablehlo.add across dimensions = [1] : (tensor<1x24xf32>, tensor<f32>) -> tensor<1xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.mul1 = stablehlo.multiply %l0_post_attention_layernorm.red, %c4 : tensor<1xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.add = stablehlo.add %l0_post_attention_layernorm.mul1, %c5 : tensor<1xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.rsqrt = stablehlo.rsqrt %l0_post_attention_layernorm.add : tensor<1xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.bc = stablehlo.broadcast_in_dim %l0_post_attention_layernorm.rsqrt, dims = [0] : (tensor<1xf32>) -> tensor<1x24xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.mul2 = stablehlo.multiply %l0.add, %l0_post_attention_layernorm.bc : tensor<1x24xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.bc1 = stablehlo.broadcast_in_dim %model.layers.0.post_attention_layernorm.weight, dims = [1] : (tensor<24xf32>) -> tensor<1x24xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.mul3 = stablehlo.multiply %l0_post_attention_layernorm.mul2, %l0_post_attention_layernorm.bc1 : tensor<1x24xf32> loc("layers.0.post_attention_layernorm")
    %l0_mlp_gate.dot = stablehlo.dot_general %l0_post_attention_layernorm.mul3, %model.layers.0.mlp.gate.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x24xf32>, tensor<4x24xf32>) -> tensor<1x4xf32> loc("layers.0.mlp.gate")
    %l0_mlp_routing.red = stablehlo.reduce(%l0_mlp_gate.dot init: %c13) applies stablehlo.maximum across dimensions = [1] : (tensor<1x4xf32>, tensor<f32>) -> tensor<1xf32> loc("layers.0.mlp.routing")
    %l0_mlp_routing.bc = stablehlo.broadcast_in_dim %l0_mlp_routing.red, dims = [0] : (tensor<1xf32>) -> tensor<1x4xf32> loc("layers.0.mlp.routing")
    %l0_mlp_routing.sub = stablehlo.subtract %l0_mlp_gate.dot, %l0_mlp_routing.bc : tensor<1x4xf32> loc("layers.0.mlp.routing")
    %l0_mlp_routing.exponential = stablehlo.exponential %l0_mlp_routing.sub : tensor<1x4xf32> loc("layers.0.mlp.routing")
    %l0_mlp_routing.red1 = stablehlo.reduce(%l0_mlp_routing.exponential init: %c3) applies stablehlo.add across dimensions = [1] : (tensor<1x4xf32>, tensor<f32>) -> tensor<1xf32> loc("layers.0.mlp.routing")
    %l0_mlp_routing.bc1 = stablehlo.broadcast_in_dim %l0_mlp_routing.red1, dims = [0] : (tensor<1xf32>) -> tensor<1x4xf32> loc("layers.0.mlp.routing")
    %l0_mlp_routing.div = stablehlo.divide %l0_mlp_routing.exponential, %l0_mlp_routing.bc1 : tensor<1x4xf32> loc("layers.0.mlp.routing")
    %l0_mlp_routing.b = stablehlo.optimization_barrier %l0_mlp_routing.div : tensor<1x4xf32> loc("layers.0.mlp.routing")
    %l0_mlp_routing.bc2 = stablehlo.broadcast_in_dim %l0_mlp_routing.b, dims = [0, 1] : (tensor<1x4xf32>) -> tensor<1x4x4xf32> loc("layers.0.mlp.routing")
    %l0_mlp_routing.bc3 = stablehlo.broadcast_in_dim %l0_mlp_routing.b, dims = [0, 2] : (tensor<1x4xf32>) -> tensor<1x4x4xf32> loc("layers.0.mlp.routing")
    %l0_mlp_routing.iota = stablehlo.iota dim = 2 : tensor<1x4x4xi32> loc("layers.0.mlp.routing")
    %l0_mlp_routing.iota1 = stablehlo.iota dim = 1 : tensor<1x4x4xi32> loc("layers.0.mlp.routing")
    %l0_mlp_routing.cmp = stablehlo.compare LT, %l0_mlp_routing.iota, %l0_mlp_routing.iota1, SIGNED : (tensor<1x4x4xi32>, tensor<1x4x4xi32>) -> tensor<1x4x4xi1> loc("layers.0.mlp.routing")
    %l0_mlp_routing.cmp1 = stablehlo.compare GE, %l0_mlp_routing.bc3, %l0_mlp_routing.bc2, FLOAT : (tensor<1x4x4xf32>, tensor<1x4x4xf32>) -> tensor<1x4x4xi1> loc("layers.0.mlp.routing")
    %l0_mlp_routing.cmp2 = stablehlo.compare GT, %l0_mlp_routing.bc3, %l0_mlp_routing.bc2, FLOAT : (tensor<1x4x4xf32>, tensor<1x4x4xf32>) -> tensor<1x4x4xi1> loc("layers.0.mlp.routing")
    %l0_mlp_routing.sel = stablehlo.select %l0_mlp_routing.cmp, %l0_mlp_routing.cmp1, %l0_mlp_routing.cmp2 : tensor<1x4x4xi1>, tensor<1x4x4xi1> loc("layers.0.mlp.routing")
    %l0_mlp_routing.as = stablehlo.convert %l0_mlp_routing.sel : (tensor<1x4x4xi1>) -> tensor<1x4x4xi32> loc("layers.0.mlp.routing")
    %l0_mlp_routing.red2 = stablehlo.reduce(%l0_mlp_routing.as init: %c) applies stablehlo.add across dimensions = [2] : (tensor<1x4x4xi32>, tensor<i32>) -> tensor<1x4xi32> loc("layers.0.mlp.routing")
    %c14 = stablehlo.constant dense<2> : tensor<1x4xi32>
    %l0_mlp_routing.cmp3 = stablehlo.compare LT, %l0_mlp_routing.red2, %c14, SIGNED : (tensor<1x4xi32>, tensor<1x4xi32>) -> tensor<1x4xi1> loc("layers.0.mlp.routing")
    %c15 = stablehlo.constant dense<0.0> : tensor<1x4xf32>
    %l0_mlp_routing.sel1 = stablehlo.select %l0_mlp_routing.cmp3, %l0_mlp_routing.div, %c15 : tensor<1x4xi1>, tensor<1x4xf32> loc("layers.0.mlp.routing")
    %l0_mlp_experts.b = stablehlo.optimization_barrier %l0_mlp_routing.sel1 : tensor<1x4xf32> loc("layers.0.mlp.experts")
    %l0_mlp_experts.bc = stablehlo.broadcast_in_dim %l0_mlp_experts.b, dims = [0, 1] : (tensor<1x4xf32>) -> tensor<1x4x4xf32> loc("layers.0.mlp.experts")
    %l0_mlp_experts.bc1 = stablehlo.broadcast_in_dim %l0_mlp_experts.b, dims = [0, 2] : (tensor<1x4xf32>) -> tensor<1x4x4xf32> loc("layers.0.mlp.experts")
    %l0_mlp_experts.iota = stablehlo.iota dim = 2 : tensor<1x4x4xi32> loc("layers.0.mlp.experts")
    %l0_mlp_experts.iota1 = stablehlo.iota dim = 1 : tensor<1x4x4xi32> loc("layers.0.mlp.experts")
    %l0_mlp_experts.cmp = stablehlo.compare LT, %l0_mlp_experts.iota, %l0_mlp_experts.iota1, SIGNED : (tensor<1x4x4xi32>, tensor<1x4x4xi32>) -> tensor<1x4x4xi1> loc("layers.0.mlp.experts")
    %l0_mlp_experts.cmp1 = stablehlo.compare GE, %l0_mlp_experts.bc1, %l0_mlp_experts.bc, FLOAT : (tensor<1x4x4xf32>, tensor<1x4x4xf32>) -> tensor<1x4x4xi1> loc("layers.0.mlp.experts")
    %l0_mlp_experts.cmp2 = stablehlo.compare GT, %l0_mlp_experts.bc1, %l0_mlp_experts.bc, FLOAT : (tensor<1x4x4xf32>, tensor<1x4x4xf32>) -> tensor<1x4x4xi1> loc("layers.0.mlp.experts")
    %l0_mlp_experts.sel = stablehlo.select %l0_mlp_experts.cmp, %l0_mlp_experts.cmp1, %l0_mlp_experts.cmp2 : tensor<1x4x4xi1>, tensor<1x4x4xi1> loc("layers.0.mlp.experts")
    %l0_mlp_experts.as = stablehlo.convert %l0_mlp_experts.sel : (tensor<1x4x4xi1>) -> tensor<1x4x4xi32> loc("layers.0.mlp.experts")
    %l0_mlp_experts.red = stablehlo.reduce(%l0_mlp_experts.as init: %c) applies stablehlo.add across dimensions = [2] : (tensor<1x4x4xi32>, tensor<i32>) -> tensor<1x4xi32> loc("layers.0.mlp.experts")
    %l0_mlp_experts.bc2 = stablehlo.broadcast_in_dim %l0_mlp_experts.red, dims = [0, 1] : (tensor<1x4xi32>) -> tensor<2x4xi32> loc("layers.0.mlp.experts")
    %l0_mlp_experts.iota2 = stablehlo.iota dim = 0 : tensor<2x4xi32> loc("layers.0.mlp.experts")
    %l0_mlp_experts.cmp3 = stablehlo.compare EQ, %l0_mlp_experts.bc2, %l0_mlp_experts.iota2, SIGNED : (tensor<2x4xi32>, tensor<2x4xi32>) -> tensor<2x4xi1> loc("layers.0.mlp.experts")
    %l0_mlp_experts.iota3 = stablehlo.iota dim = 1 : tensor<2x4xi32> loc("layers.0.mlp.experts")
    %c16 = stablehlo.constant dense<0> : tensor<2x4xi32>
    %l0_mlp_experts.sel1 = stablehlo.select %l0_mlp_experts.cmp3, %l0_mlp_experts.iota3, %c16 : tensor<2x4xi1>, tensor<2x4xi32> loc("layers.0.mlp.experts")
    %l0_mlp_experts.red1 = stablehlo.reduce(%l0_mlp_experts.sel1 init: %c) applies stablehlo.add across dimensions = [1] : (tensor<2x4xi32>, tensor<i32>) -> tensor<2xi32> loc("layers.0.mlp.experts")
    %l0_mlp_experts.r = stablehlo.reshape %l0_mlp_experts.red1 : (tensor<2xi32>) -> tensor<2x1xi32> loc("layers.0.mlp.experts")
    %l0_mlp_experts.bc3 = stablehlo.broadcast_in_dim %l0_mlp_routing.sel1, dims = [0, 1] : (tensor<1x4xf32>) -> tensor<2x4xf32> loc("layers.0.mlp.experts")
    %c17 = stablehlo.constant dense<0.0> : tensor<2x4xf32>
    %l0_mlp_experts.sel2 = stablehlo.select %l0_mlp_experts.cmp3, %l0_mlp_experts.bc3, %c17 : tensor<2x4xi1>, tensor<2x4xf32> loc("layers.0.mlp.experts")
    %l0_mlp_experts.red2 = stablehlo.reduce(%l0_mlp_experts.sel2 init: %c3) applies stablehlo.add across dimensions = [1] : (tensor<2x4xf32>, tensor<f32>) -> tensor<2xf32> loc("layers.0.mlp.experts")
    %l0_mlp_experts.r1 = stablehlo.reshape %l0_mlp_experts.red2 : (tensor<2xf32>) -> tensor<1x2xf32> loc("layers.0.mlp.experts")
    %l0_mlp_experts.rows = "stablehlo.gather"(%model.layers.0.mlp.experts.gate_up_proj, %l0_mlp_experts.r) <{dimension_numbers = #stablehlo.gather<offset_dims = [1, 2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 6, 24>}> : (tensor<4x6x24xf32>, tensor<2x1xi32>) -> tensor<2x6x24xf32> loc("layers.0.mlp.experts")
    %l0_mlp_experts.rows1 = "stablehlo.gather"(%model.layers.0.mlp.experts.down_proj, %l0_mlp_experts.r) <{dimension_numbers = #stablehlo.gather<offset_dims = [1, 2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 24, 3>}> : (tensor<4x24x3xf32>, tensor<2x1xi32>) -> tensor<2x24x3xf32> loc("layers.0.mlp.experts")
    %l0_mlp_experts.dot = stablehlo.dot_general %l0_post_attention_layernorm.mul3, %l0_mlp_experts.rows, contracting_dims = [1] x [2], precision = [HIGHEST, HIGHEST] : (tensor<1x24xf32>, tensor<2x6x24xf32>) -> tensor<1x2x6xf32> loc("layers.0.mlp.experts")
    %l0_mlp_experts.sl = stablehlo.slice %l0_mlp_experts.dot [0:1, 0:2, 0:3] : (tensor<1x2x6xf32>) -> tensor<1x2x3xf32> loc("layers.0.mlp.experts")
    %l0_mlp_experts.sl1 = stablehlo.slice %l0_mlp_experts.dot [0:1, 0:2, 3:6] : (tensor<1x2x6xf32>) -> tensor<1x2x3xf32> loc("layers.0.mlp.experts")
    %l0_mlp_experts.logistic = stablehlo.logistic %l0_mlp_experts.sl : tensor<1x2x3xf32> loc("layers.0.mlp.experts")
    %l0_mlp_experts.mul = stablehlo.multiply %l0_mlp_experts.sl, %l0_mlp_experts.logistic : tensor<1x2x3xf32> loc("layers.0.mlp.experts")
    %l0_mlp_experts.mul1 = stablehlo.multiply %l0_mlp_experts.mul, %l0_mlp_experts.sl1 : tensor<1x2x3xf32> loc("layers.0.mlp.experts")
    %l0_mlp_experts.bc4 = stablehlo.broadcast_in_dim %l0_mlp_experts.r1, dims = [0, 1] : (tensor<1x2xf32>) -> tensor<1x2x3xf32> loc("layers.0.mlp.experts")
    %l0_mlp_experts.mul2 = stablehlo.multiply %l0_mlp_experts.mul1, %l0_mlp_experts.bc4 : tensor<1x2x3xf32> loc("layers.0.mlp.experts")
    %l0_mlp_experts.dot1 = stablehlo.dot_general %l0_mlp_experts.mul2, %l0_mlp_experts.rows1, contracting_dims = [1, 2] x [0, 2], precision = [HIGHEST, HIGHEST] : (tensor<1x2x3xf32>, tensor<2x24x3xf32>) -> tensor<1x24xf32> loc("layers.0.mlp.experts")
    %l0.add1 = stablehlo.add %l0.add, %l0_mlp_experts.dot1 : tensor<1x24xf32> loc("layers.0")
    %norm.mul = stablehlo.multiply %l0.add1, %l0.add1 : tensor<1x24xf32> loc("norm")
    %norm.red = stablehlo.reduce(%norm.mul init: %c3) applies stablehlo.add across dimensions = [1] : (tensor<1x24xf32>, tensor<f32>) -> tensor<1xf32> loc("norm")
    %norm.mul1 = stablehlo.multiply %norm.red, %c4 : tensor<1xf32> loc("norm")
    %norm.add = stablehlo.add %norm.mul1, %c5 : tensor<1xf32> loc("norm")
    %norm.rsqrt = stablehlo.rsqrt %norm.add : tensor<1xf32> loc("norm")
    %norm.bc = stablehlo.broadcast_in_dim %norm.rsqrt, dims = [0] : (tensor<1xf32>) -> tensor<1x24xf32> loc("norm")
    %norm.mul2 = stablehlo.multiply %l0.add1, %norm.bc : tensor<1x24xf32> loc("norm")
    %norm.bc1 = stablehlo.broadcast_in_dim %model.norm.weight, dims = [1] : (tensor<24xf32>) -> tensor<1x24xf32> loc("norm")
    %norm.mul3 = stablehlo.multiply %norm.mul2, %norm.bc1 : tensor<1x24xf32> loc("norm")
    %lm_head.dot = stablehlo.dot_general %norm.mul3, %lm_head.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x24xf32>, tensor<17x24xf32>) -> tensor<1x17xf32> loc("lm_head")
    %lm_head.r = stablehlo.reshape %lm_head.dot : (tensor<1x17xf32>) -> tensor<17xf32> loc("lm_head")
    func.return %lm_head.r, %l0_self_attn_k_cache.dus, %l0_self_attn_v_cache.dus : tensor<17xf32>, tensor<1x2x5x4xf32>, tensor<1x2x5x4xf32>
  }
}
