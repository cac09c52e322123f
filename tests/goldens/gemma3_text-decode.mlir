module @gemma3_text_decode_logits {
  func.func public @main(
    %model.embed_tokens.weight: tensor<17x18xf32>,
    %model.layers.0.input_layernorm.weight: tensor<18xf32>,
    %model.layers.0.self_attn.q_proj.weight: tensor<24x18xf32>,
    %model.layers.0.self_attn.k_proj.weight: tensor<8x18xf32>,
    %model.layers.0.self_attn.v_proj.weight: tensor<8x18xf32>,
    %model.layers.0.self_attn.q_norm.weight: tensor<4xf32>,
    %model.layers.0.self_attn.k_norm.weight: tensor<4xf32>,
    %model.layers.0.self_attn.o_proj.weight: tensor<18x24xf32>,
    %model.layers.0.post_attention_layernorm.weight: tensor<18xf32>,
    %model.layers.0.pre_feedforward_layernorm.weight: tensor<18xf32>,
    %model.layers.0.mlp.gate_proj.weight: tensor<14x18xf32>,
    %model.layers.0.mlp.up_proj.weight: tensor<14x18xf32>,
    %model.layers.0.mlp.down_proj.weight: tensor<18x14xf32>,
    %model.layers.0.post_feedforward_layernorm.weight: tensor<18xf32>,
    %model.layers.1.input_layernorm.weight: tensor<18xf32>,
    %model.layers.1.self_attn.q_proj.weight: tensor<24x18xf32>,
    %model.layers.1.self_attn.k_proj.weight: tensor<8x18xf32>,
    %model.layers.1.self_attn.v_proj.weight: tensor<8x18xf32>,
    %model.layers.1.self_attn.q_norm.weight: tensor<4xf32>,
    %model.layers.1.self_attn.k_norm.weight: tensor<4xf32>,
    %model.layers.1.self_attn.o_proj.weight: tensor<18x24xf32>,
    %model.layers.1.post_attention_layernorm.weight: tensor<18xf32>,
    %model.layers.1.pre_feedforward_layernorm.weight: tensor<18xf32>,
    %model.layers.1.mlp.gate_proj.weight: tensor<14x18xf32>,
    %model.layers.1.mlp.up_proj.weight: tensor<14x18xf32>,
    %model.layers.1.mlp.down_proj.weight: tensor<18x14xf32>,
    %model.layers.1.post_feedforward_layernorm.weight: tensor<18xf32>,
    %model.norm.weight: tensor<18xf32>,
    %token: tensor<i32>,
    %position: tensor<i32>,
    %k_cache: tensor<2x2x5x4xf32> {tf.aliasing_output = 1 : i32},
    %v_cache: tensor<2x2x5x4xf32> {tf.aliasing_output = 2 : i32}
  ) -> (tensor<17xf32>, tensor<2x2x5x4xf32>, tensor<2x2x5x4xf32>) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %max = stablehlo.maximum %position, %c : tensor<i32>
    %sub = stablehlo.subtract %max, %position : tensor<i32>
    %iota = stablehlo.iota dim = 0 : tensor<2xi32>
    %bc = stablehlo.broadcast_in_dim %sub, dims = [] : (tensor<i32>) -> tensor<2xi32>
    %add = stablehlo.add %iota, %bc : tensor<2xi32>
    %iota1 = stablehlo.iota dim = 0 : tensor<5xi32>
    %bc1 = stablehlo.broadcast_in_dim %position, dims = [] : (tensor<i32>) -> tensor<5xi32>
    %cmp = stablehlo.compare LE, %iota1, %bc1, SIGNED : (tensor<5xi32>, tensor<5xi32>) -> tensor<5xi1>
    %c1 = stablehlo.constant dense<2> : tensor<5xi32>
    %add1 = stablehlo.add %iota1, %c1 : tensor<5xi32>
    %bc2 = stablehlo.broadcast_in_dim %position, dims = [] : (tensor<i32>) -> tensor<5xi32>
    %cmp1 = stablehlo.compare GT, %add1, %bc2, SIGNED : (tensor<5xi32>, tensor<5xi32>) -> tensor<5xi1>
    %and = stablehlo.and %cmp, %cmp1 : tensor<5xi1>
    %iota2 = stablehlo.iota dim = 0 : tensor<5xi32>
    %bc3 = stablehlo.broadcast_in_dim %position, dims = [] : (tensor<i32>) -> tensor<5xi32>
    %cmp2 = stablehlo.compare LE, %iota2, %bc3, SIGNED : (tensor<5xi32>, tensor<5xi32>) -> tensor<5xi1>
    %c2 = stablehlo.constant dense<"0x0000803F0000803F0000803F0000803F40510A3F7ABE7F3F40510A3F7ABE7F3F3311D5BE08FA7E3F3311D5BE08FA7E3F26707DBF0FB37D3F26707DBF0FB37D3F305527BF38EA7B3F305527BF38EA7B3F"> : tensor<5x2x2xf32>
    %ds = stablehlo.dynamic_slice %c2, %position, %c, %c, sizes = [1, 2, 2] : (tensor<5x2x2xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x2xf32>
    %c3 = stablehlo.constant dense<"0x00000080000000800000000000000000A46A57BF1D1E37BDA46A573F1D1E373DB7C768BF3FEFB6BDB7C7683F3FEFB63DC38110BEE4F808BEC381103EE4F8083ECFBD413F0B3436BECFBD41BF0B34363E"> : tensor<5x2x2xf32>
    %ds1 = stablehlo.dynamic_slice %c3, %position, %c, %c, sizes = [1, 2, 2] : (tensor<5x2x2xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x2xf32>
    %c4 = stablehlo.constant dense<"0x0000803F0000803F0000803F0000803FAB007E3FFFFF7F3FAB007E3FFFFF7F3FA50A783FFBFF7F3FA50A783FFBFF7F3FBF356E3FF4FF7F3FBF356E3FF4FF7F3F40A9603FEBFF7F3F40A9603FEBFF7F3F"> : tensor<5x2x2xf32>
    %ds2 = stablehlo.dynamic_slice %c4, %position, %c, %c, sizes = [1, 2, 2] : (tensor<5x2x2xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x2xf32>
    %c5 = stablehlo.constant dense<"0x000000800000008000000000000000007755FFBD373ECFB97755FF3D373ECF3977577DBE363E4FBA77577D3E363E4F3A1388BBBEA76E9BBA1388BB3EA76E9B3A4477F5BE313ECFBA4477F53E313ECF3A"> : tensor<5x2x2xf32>
    %ds3 = stablehlo.dynamic_slice %c5, %position, %c, %c, sizes = [1, 2, 2] : (tensor<5x2x2xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x2xf32>
    %embed_tokens.ds = stablehlo.dynamic_slice %model.embed_tokens.weight, %token, %c, sizes = [1, 18] : (tensor<17x18xf32>, tensor<i32>, tensor<i32>) -> tensor<1x18xf32> loc("embed_tokens")
    %c6 = stablehlo.constant dense<4.242640495300293> : tensor<1x18xf32>
    %embed_tokens.mul = stablehlo.multiply %embed_tokens.ds, %c6 : tensor<1x18xf32> loc("embed_tokens")
    %c7 = stablehlo.constant dense<1.0> : tensor<18xf32>
    %l0_input_layernorm.add = stablehlo.add %model.layers.0.input_layernorm.weight, %c7 : tensor<18xf32> loc("layers.0.input_layernorm")
    %l0_input_layernorm.mul = stablehlo.multiply %embed_tokens.mul, %embed_tokens.mul : tensor<1x18xf32> loc("layers.0.input_layernorm")
    %c8 = stablehlo.constant dense<0.0> : tensor<f32>
    %l0_input_layernorm.red = stablehlo.reduce(%l0_input_layernorm.mul init: %c8) applies stablehlo.add across dimensions = [1] : (tensor<1x18xf32>, tensor<f32>) -> tensor<1xf32> loc("layers.0.input_layernorm")
    %c9 = stablehlo.constant dense<0.05555555555555555> : tensor<1xf32>
    %l0_input_layernorm.mul1 = stablehlo.multiply %l0_input_layernorm.red, %c9 : tensor<1xf32> loc("layers.0.input_layernorm")
    %c10 = stablehlo.constant dense<3.0e-05> : tensor<1xf32>
    %l0_input_layernorm.add1 = stablehlo.add %l0_input_layernorm.mul1, %c10 : tensor<1xf32> loc("layers.0.input_layernorm")
    %l0_input_layernorm.rsqrt = stablehlo.rsqrt %l0_input_layernorm.add1 : tensor<1xf32> loc("layers.0.input_layernorm")
    %l0_input_layernorm.bc = stablehlo.broadcast_in_dim %l0_input_layernorm.rsqrt, dims = [0] : (tensor<1xf32>) -> tensor<1x18xf32> loc("layers.0.input_layernorm")
    %l0_input_layernorm.mul2 = stablehlo.multiply %embed_tokens.mul, %l0_input_layernorm.bc : tensor<1x18xf32> loc("layers.0.input_layernorm")
    %l0_input_layernorm.bc1 = stablehlo.broadcast_in_dim %l0_input_layernorm.add, dims = [1] : (tensor<18xf32>) -> tensor<1x18xf32> loc("layers.0.input_layernorm")
    %l0_input_layernorm.mul3 = stablehlo.multiply %l0_input_layernorm.mul2, %l0_input_layernorm.bc1 : tensor<1x18xf32> loc("layers.0.input_layernorm")
    %l0_self_attn_q_proj.dot = stablehlo.dot_general %l0_input_layernorm.mul3, %model.layers.0.self_attn.q_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x18xf32>, tensor<24x18xf32>) -> tensor<1x24xf32> loc("layers.0.self_attn.q_proj")
    %l0_self_attn_q_proj.r = stablehlo.reshape %l0_self_attn_q_proj.dot : (tensor<1x24xf32>) -> tensor<1x6x4xf32> loc("layers.0.self_attn.q_proj")
    %l0_self_attn_k_proj.dot = stablehlo.dot_general %l0_input_layernorm.mul3, %model.layers.0.self_attn.k_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x18xf32>, tensor<8x18xf32>) -> tensor<1x8xf32> loc("layers.0.self_attn.k_proj")
    %l0_self_attn_k_proj.r = stablehlo.reshape %l0_self_attn_k_proj.dot : (tensor<1x8xf32>) -> tensor<1x2x4xf32> loc("layers.0.self_attn.k_proj")
    %l0_self_attn_v_proj.dot = stablehlo.dot_general %l0_input_layernorm.mul3, %model.layers.0.self_attn.v_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x18xf32>, tensor<8x18xf32>) -> tensor<1x8xf32> loc("layers.0.self_attn.v_proj")
    %l0_self_attn_v_proj.r = stablehlo.reshape %l0_self_attn_v_proj.dot : (tensor<1x8xf32>) -> tensor<1x2x4xf32> loc("layers.0.self_attn.v_proj")
    %c11 = stablehlo.constant dense<1.0> : tensor<4xf32>
    %l0_self_attn_q_norm.add = stablehlo.add %model.layers.0.self_attn.q_norm.weight, %c11 : tensor<4xf32> loc("layers.0.self_attn.q_norm")
    %l0_self_attn_q_norm.mul = stablehlo.multiply %l0_self_attn_q_proj.r, %l0_self_attn_q_proj.r : tensor<1x6x4xf32> loc("layers.0.self_attn.q_norm")
    %l0_self_attn_q_norm.red = stablehlo.reduce(%l0_self_attn_q_norm.mul init: %c8) applies stablehlo.add across dimensions = [2] : (tensor<1x6x4xf32>, tensor<f32>) -> tensor<1x6xf32> loc("layers.0.self_attn.q_norm")
    %c12 = stablehlo.constant dense<0.25> : tensor<1x6xf32>
    %l0_self_attn_q_norm.mul1 = stablehlo.multiply %l0_self_attn_q_norm.red, %c12 : tensor<1x6xf32> loc("layers.0.self_attn.q_norm")
    %c13 = stablehlo.constant dense<3.0e-05> : tensor<1x6xf32>
    %l0_self_attn_q_norm.add1 = stablehlo.add %l0_self_attn_q_norm.mul1, %c13 : tensor<1x6xf32> loc("layers.0.self_attn.q_norm")
    %l0_self_attn_q_norm.rsqrt = stablehlo.rsqrt %l0_self_attn_q_norm.add1 : tensor<1x6xf32> loc("layers.0.self_attn.q_norm")
    %l0_self_attn_q_norm.bc = stablehlo.broadcast_in_dim %l0_self_attn_q_norm.rsqrt, dims = [0, 1] : (tensor<1x6xf32>) -> tensor<1x6x4xf32> loc("layers.0.self_attn.q_norm")
    %l0_self_attn_q_norm.mul2 = stablehlo.multiply %l0_self_attn_q_proj.r, %l0_self_attn_q_norm.bc : tensor<1x6x4xf32> loc("layers.0.self_attn.q_norm")
    %l0_self_attn_q_norm.bc1 = stablehlo.broadcast_in_dim %l0_self_attn_q_norm.add, dims = [2] : (tensor<4xf32>) -> tensor<1x6x4xf32> loc("layers.0.self_attn.q_norm")
    %l0_self_attn_q_norm.mul3 = stablehlo.multiply %l0_self_attn_q_norm.mul2, %l0_self_attn_q_norm.bc1 : tensor<1x6x4xf32> loc("layers.0.self_attn.q_norm")
    %l0_self_attn_k_norm.add = stablehlo.add %model.layers.0.self_attn.k_norm.weight, %c11 : tensor<4xf32> loc("layers.0.self_attn.k_norm")
    %l0_self_attn_k_norm.mul = stablehlo.multiply %l0_self_attn_k_proj.r, %l0_self_attn_k_proj.r : tensor<1x2x4xf32> loc("layers.0.self_attn.k_norm")
    %l0_self_attn_k_norm.red = stablehlo.reduce(%l0_self_attn_k_norm.mul init: %c8) applies stablehlo.add across dimensions = [2] : (tensor<1x2x4xf32>, tensor<f32>) -> tensor<1x2xf32> loc("layers.0.self_attn.k_norm")
    %c14 = stablehlo.constant dense<0.25> : tensor<1x2xf32>
    %l0_self_attn_k_norm.mul1 = stablehlo.multiply %l0_self_attn_k_norm.red, %c14 : tensor<1x2xf32> loc("layers.0.self_attn.k_norm")
    %c15 = stablehlo.constant dense<3.0e-05> : tensor<1x2xf32>
    %l0_self_attn_k_norm.add1 = stablehlo.add %l0_self_attn_k_norm.mul1, %c15 : tensor<1x2xf32> loc("layers.0.self_attn.k_norm")
    %l0_self_attn_k_norm.rsqrt = stablehlo.rsqrt %l0_self_attn_k_norm.add1 : tensor<1x2xf32> loc("layers.0.self_attn.k_norm")
    %l0_self_attn_k_norm.bc = stablehlo.broadcast_in_dim %l0_self_attn_k_norm.rsqrt, dims = [0, 1] : (tensor<1x2xf32>) -> tensor<1x2x4xf32> loc("layers.0.self_attn.k_norm")
    %l0_self_attn_k_norm.mul2 = stablehlo.multiply %l0_self_attn_k_proj.r, %l0_self_attn_k_norm.bc : tensor<1x2x4xf32> loc("layers.0.self_attn.k_norm")
    %l0_self_attn_k_norm.bc1 = stablehlo.broadcast_in_dim %l0_self_attn_k_norm.add, dims = [2] : (tensor<4xf32>) -> tensor<1x2x4xf32> loc("layers.0.self_attn.k_norm")
    %l0_self_attn_k_norm.mul3 = stablehlo.multiply %l0_self_attn_k_norm.mul2, %l0_self_attn_k_norm.bc1 : tensor<1x2x4xf32> loc("layers.0.self_attn.k_norm")
    %l0_self_attn_q_rope.r = stablehlo.reshape %l0_self_attn_q_norm.mul3 : (tensor<1x6x4xf32>) -> tensor<1x6x2x2xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.bc = stablehlo.broadcast_in_dim %ds, dims = [0, 2, 3] : (tensor<1x2x2xf32>) -> tensor<1x6x2x2xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.bc1 = stablehlo.broadcast_in_dim %ds1, dims = [0, 2, 3] : (tensor<1x2x2xf32>) -> tensor<1x6x2x2xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.rev = stablehlo.reverse %l0_self_attn_q_rope.r, dims = [2] : tensor<1x6x2x2xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.mul = stablehlo.multiply %l0_self_attn_q_rope.r, %l0_self_attn_q_rope.bc : tensor<1x6x2x2xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.mul1 = stablehlo.multiply %l0_self_attn_q_rope.rev, %l0_self_attn_q_rope.bc1 : tensor<1x6x2x2xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.add = stablehlo.add %l0_self_attn_q_rope.mul, %l0_self_attn_q_rope.mul1 : tensor<1x6x2x2xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.r1 = stablehlo.reshape %l0_self_attn_q_rope.add : (tensor<1x6x2x2xf32>) -> tensor<1x6x4xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_k_rope.r = stablehlo.reshape %l0_self_attn_k_norm.mul3 : (tensor<1x2x4xf32>) -> tensor<1x2x2x2xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.bc = stablehlo.broadcast_in_dim %ds, dims = [0, 2, 3] : (tensor<1x2x2xf32>) -> tensor<1x2x2x2xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.bc1 = stablehlo.broadcast_in_dim %ds1, dims = [0, 2, 3] : (tensor<1x2x2xf32>) -> tensor<1x2x2x2xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.rev = stablehlo.reverse %l0_self_attn_k_rope.r, dims = [2] : tensor<1x2x2x2xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.mul = stablehlo.multiply %l0_self_attn_k_rope.r, %l0_self_attn_k_rope.bc : tensor<1x2x2x2xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.mul1 = stablehlo.multiply %l0_self_attn_k_rope.rev, %l0_self_attn_k_rope.bc1 : tensor<1x2x2x2xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.add = stablehlo.add %l0_self_attn_k_rope.mul, %l0_self_attn_k_rope.mul1 : tensor<1x2x2x2xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.r1 = stablehlo.reshape %l0_self_attn_k_rope.add : (tensor<1x2x2x2xf32>) -> tensor<1x2x4xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_cache.ds = stablehlo.dynamic_slice %add, %c, sizes = [1] : (tensor<2xi32>, tensor<i32>) -> tensor<1xi32> loc("layers.0.self_attn.k_cache")
    %l0_self_attn_k_cache.r = stablehlo.reshape %l0_self_attn_k_cache.ds : (tensor<1xi32>) -> tensor<i32> loc("layers.0.self_attn.k_cache")
    %l0_self_attn_k_cache.r1 = stablehlo.reshape %l0_self_attn_k_rope.r1 : (tensor<1x2x4xf32>) -> tensor<1x2x1x4xf32> loc("layers.0.self_attn.k_cache")
    %l0_self_attn_k_cache.dus = stablehlo.dynamic_update_slice %k_cache, %l0_self_attn_k_cache.r1, %l0_self_attn_k_cache.r, %c, %position, %c : (tensor<2x2x5x4xf32>, tensor<1x2x1x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x5x4xf32> loc("layers.0.self_attn.k_cache")
    %l0_self_attn_k_cache.ds1 = stablehlo.dynamic_slice %l0_self_attn_k_cache.dus, %l0_self_attn_k_cache.r, %c, %c, %c, sizes = [1, 2, 5, 4] : (tensor<2x2x5x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x5x4xf32> loc("layers.0.self_attn.k_cache")
    %l0_self_attn_k_cache.r2 = stablehlo.reshape %l0_self_attn_k_cache.ds1 : (tensor<1x2x5x4xf32>) -> tensor<2x5x4xf32> loc("layers.0.self_attn.k_cache")
    %l0_self_attn_v_cache.ds = stablehlo.dynamic_slice %add, %c, sizes = [1] : (tensor<2xi32>, tensor<i32>) -> tensor<1xi32> loc("layers.0.self_attn.v_cache")
    %l0_self_attn_v_cache.r = stablehlo.reshape %l0_self_attn_v_cache.ds : (tensor<1xi32>) -> tensor<i32> loc("layers.0.self_attn.v_cache")
    %l0_self_attn_v_cache.r1 = stablehlo.reshape %l0_self_attn_v_proj.r : (tensor<1x2x4xf32>) -> tensor<1x2x1x4xf32> loc("layers.0.self_attn.v_cache")
    %l0_self_attn_v_cache.dus = stablehlo.dynamic_update_slice %v_cache, %l0_self_attn_v_cache.r1, %l0_self_attn_v_cache.r, %c, %position, %c : (tensor<2x2x5x4xf32>, tensor<1x2x1x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x5x4xf32> loc("layers.0.self_attn.v_cache")
    %l0_self_attn_v_cache.ds1 = stablehlo.dynamic_slice %l0_self_attn_v_cache.dus, %l0_self_attn_v_cache.r, %c, %c, %c, sizes = [1, 2, 5, 4] : (tensor<2x2x5x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x5x4xf32> loc("layers.0.self_attn.v_cache")
    %l0_self_attn_v_cache.r2 = stablehlo.reshape %l0_self_attn_v_cache.ds1 : (tensor<1x2x5x4xf32>) -> tensor<2x5x4xf32> loc("layers.0.self_attn.v_cache")
    %l0_self_attn_scores.r = stablehlo.reshape %l0_self_attn_q_rope.r1 : (tensor<1x6x4xf32>) -> tensor<1x2x3x4xf32> loc("layers.0.self_attn.scores")
    %l0_self_attn_scores.dot = stablehlo.dot_general %l0_self_attn_scores.r, %l0_self_attn_k_cache.r2, batching_dims = [1] x [0], contracting_dims = [3] x [2], precision = [HIGHEST, HIGHEST] : (tensor<1x2x3x4xf32>, tensor<2x5x4xf32>) -> tensor<2x1x3x5xf32> loc("layers.0.self_attn.scores")
    %c16 = stablehlo.constant dense<0.20851441405707477> : tensor<2x1x3x5xf32>
    %l0_self_attn_scores.mul = stablehlo.multiply %l0_self_attn_scores.dot, %c16 : tensor<2x1x3x5xf32> loc("layers.0.self_attn.scores")
    %l0_self_attn_scores.bc = stablehlo.broadcast_in_dim %and, dims = [3] : (tensor<5xi1>) -> tensor<2x1x3x5xi1> loc("layers.0.self_attn.scores")
    %c17 = stablehlo.constant dense<0xFF800000> : tensor<2x1x3x5xf32>
    %l0_self_attn_scores.sel = stablehlo.select %l0_self_attn_scores.bc, %l0_self_attn_scores.mul, %c17 : tensor<2x1x3x5xi1>, tensor<2x1x3x5xf32> loc("layers.0.self_attn.scores")
    %c18 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %l0_self_attn_probs.red = stablehlo.reduce(%l0_self_attn_scores.sel init: %c18) applies stablehlo.maximum across dimensions = [3] : (tensor<2x1x3x5xf32>, tensor<f32>) -> tensor<2x1x3xf32> loc("layers.0.self_attn.probs")
    %l0_self_attn_probs.bc = stablehlo.broadcast_in_dim %l0_self_attn_probs.red, dims = [0, 1, 2] : (tensor<2x1x3xf32>) -> tensor<2x1x3x5xf32> loc("layers.0.self_attn.probs")
    %l0_self_attn_probs.sub = stablehlo.subtract %l0_self_attn_scores.sel, %l0_self_attn_probs.bc : tensor<2x1x3x5xf32> loc("layers.0.self_attn.probs")
    %l0_self_attn_probs.exponential = stablehlo.exponential %l0_self_attn_probs.sub : tensor<2x1x3x5xf32> loc("layers.0.self_attn.probs")
    %l0_self_attn_probs.red1 = stablehlo.reduce(%l0_self_attn_probs.exponential init: %c8) applies stablehlo.add across dimensions = [3] : (tensor<2x1x3x5xf32>, tensor<f32>) -> tensor<2x1x3xf32> loc("layers.0.self_attn.probs")
    %l0_self_attn_probs.bc1 = stablehlo.broadcast_in_dim %l0_self_attn_probs.red1, dims = [0, 1, 2] : (tensor<2x1x3xf32>) -> tensor<2x1x3x5xf32> loc("layers.0.self_attn.probs")
    %l0_self_attn_probs.div = stablehlo.divide %l0_self_attn_probs.exponential, %l0_self_attn_probs.bc1 : tensor<2x1x3x5xf32> loc("layers.0.self_attn.probs")
    %l0_self_attn_context.dot = stablehlo.dot_general %l0_self_attn_probs.div, %l0_self_attn_v_cache.r2, batching_dims = [0] x [0], contracting_dims = [3] x [1], precision = [HIGHEST, HIGHEST] : (tensor<2x1x3x5xf32>, tensor<2x5x4xf32>) -> tensor<2x1x3x4xf32> loc("layers.0.self_attn.context")
    %l0_self_attn_context.r = stablehlo.reshape %l0_self_attn_context.dot : (tensor<2x1x3x4xf32>) -> tensor<1x24xf32> loc("layers.0.self_attn.context")
    %l0_self_attn_o_proj.dot = stablehlo.dot_general %l0_self_attn_context.r, %model.layers.0.self_attn.o_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x24xf32>, tensor<18x24xf32>) -> tensor<1x18xf32> loc("layers.0.self_attn.o_proj")
    %l0_post_attention_layernorm.add = stablehlo.add %model.layers.0.post_attention_layernorm.weight, %c7 : tensor<18xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.mul = stablehlo.multiply %l0_self_attn_o_proj.dot, %l0_self_attn_o_proj.dot : tensor<1x18xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.red = stablehlo.reduce(%l0_post_attention_layernorm.mul init: %c8) applies stablehlo.add across dimensions = [1] : (tensor<1x18xf32>, tensor<f32>) -> tensor<1xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.mul1 = stablehlo.multiply %l0_post_attention_layernorm.red, %c9 : tensor<1xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.add1 = stablehlo.add %l0_post_attention_layernorm.mul1, %c10 : tensor<1xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.rsqrt = stablehlo.rsqrt %l0_post_attention_layernorm.add1 : tensor<1xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.bc = stablehlo.broadcast_in_dim %l0_post_attention_layernorm.rsqrt, dims = [0] : (tensor<1xf32>) -> tensor<1x18xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.mul2 = stablehlo.multiply %l0_self_attn_o_proj.dot, %l0_post_attention_layernorm.bc : tensor<1x18xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.bc1 = stablehlo.broadcast_in_dim %l0_post_attention_layernorm.add, dims = [1] : (tensor<18xf32>) -> tensor<1x18xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.mul3 = stablehlo.multiply %l0_post_attention_layernorm.mul2, %l0_post_attention_layernorm.bc1 : tensor<1x18xf32> loc("layers.0.post_attention_layernorm")
    %l0.add = stablehlo.add %embed_tokens.mul, %l0_post_attention_layernorm.mul3 : tensor<1x18xf32> loc("layers.0")
    %l0_pre_feedforward_layernorm.add = stablehlo.add %model.layers.0.pre_feedforward_layernorm.weight, %c7 : tensor<18xf32> loc("layers.0.pre_feedforward_layernorm")
    %l0_pre_feedforward_layernorm.mul = stablehlo.multiply %l0.add, %l0.add : tensor<1x18xf32> loc("layers.0.pre_feedforward_layernorm")
    %l0_pre_feedforward_layernorm.red = stablehlo.reduce(%l0_pre_feedforward_layernorm.mul init: %c8) applies stablehlo.add across dimensions = [1] : (tensor<1x18xf32>, tensor<f32>) -> tensor<1xf32> loc("layers.0.pre_feedforward_layernorm")
    %l0_pre_feedforward_layernorm.mul1 = stablehlo.multiply %l0_pre_feedforward_layernorm.red, %c9 : tensor<1xf32> loc("layers.0.pre_feedforward_layernorm")
    %l0_pre_feedforward_layernorm.add1 = stablehlo.add %l0_pre_feedforward_layernorm.mul1, %c10 : tensor<1xf32> loc("layers.0.pre_feedforward_layernorm")
    %l0_pre_feedforward_layernorm.rsqrt = stablehlo.rsqrt %l0_pre_feedforward_layernorm.add1 : tensor<1xf32> loc("layers.0.pre_feedforward_layernorm")
    %l0_pre_feedforward_layernorm.bc = stablehlo.broadcast_in_dim %l0_pre_feedforward_layernorm.rsqrt, dims = [0] : (tensor<1xf32>) -> tensor<1x18xf32> loc("layers.0.pre_feedforward_layernorm")
    %l0_pre_feedforward_layernorm.mul2 = stablehlo.multiply %l0.add, %l0_pre_feedforward_layernorm.bc : tensor<1x18xf32> loc("layers.0.pre_feedforward_layernorm")
    %l0_pre_feedforward_layernorm.bc1 = stablehlo.broadcast_in_dim %l0_pre_feedforward_layernorm.add, dims = [1] : (tensor<18xf32>) -> tensor<1x18xf32> loc("layers.0.pre_feedforward_layernorm")
    %l0_pre_feedforward_layernorm.mul3 = stablehlo.multiply %l0_pre_feedforward_layernorm.mul2, %l0_pre_feedforward_layernorm.bc1 : tensor<1x18xf32> loc("layers.0.pre_feedforward_layernorm")
    %l0_mlp_gate_proj.dot = stablehlo.dot_general %l0_pre_feedforward_layernorm.mul3, %model.layers.0.mlp.gate_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x18xf32>, tensor<14x18xf32>) -> tensor<1x14xf32> loc("layers.0.mlp.gate_proj")
    %l0_mlp_up_proj.dot = stablehlo.dot_general %l0_pre_feedforward_layernorm.mul3, %model.layers.0.mlp.up_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x18xf32>, tensor<14x18xf32>) -> tensor<1x14xf32> loc("layers.0.mlp.up_proj")
    %l0_mlp_act.mul = stablehlo.multiply %l0_mlp_gate_proj.dot, %l0_mlp_gate_proj.dot : tensor<1x14xf32> loc("layers.0.mlp.act")
    %l0_mlp_act.mul1 = stablehlo.multiply %l0_mlp_act.mul, %l0_mlp_gate_proj.dot : tensor<1x14xf32> loc("layers.0.mlp.act")
    %c19 = stablehlo.constant dense<0.044715> : tensor<1x14xf32>
    %l0_mlp_act.mul2 = stablehlo.multiply %l0_mlp_act.mul1, %c19 : tensor<1x14xf32> loc("layers.0.mlp.act")
    %l0_mlp_act.add = stablehlo.add %l0_mlp_gate_proj.dot, %l0_mlp_act.mul2 : tensor<1x14xf32> loc("layers.0.mlp.act")
    %c20 = stablehlo.constant dense<0.7978845608028654> : tensor<1x14xf32>
    %l0_mlp_act.mul3 = stablehlo.multiply %l0_mlp_act.add, %c20 : tensor<1x14xf32> loc("layers.0.mlp.act")
    %c21 = stablehlo.constant dense<0.5> : tensor<1x14xf32>
    %l0_mlp_act.mul4 = stablehlo.multiply %l0_mlp_gate_proj.dot, %c21 : tensor<1x14xf32> loc("layers.0.mlp.act")
    %l0_mlp_act.tanh = stablehlo.tanh %l0_mlp_act.mul3 : tensor<1x14xf32> loc("layers.0.mlp.act")
    %c22 = stablehlo.constant dense<1.0> : tensor<1x14xf32>
    %l0_mlp_act.add1 = stablehlo.add %l0_mlp_act.tanh, %c22 : tensor<1x14xf32> loc("layers.0.mlp.act")
    %l0_mlp_act.mul5 = stablehlo.multiply %l0_mlp_act.mul4, %l0_mlp_act.add1 : tensor<1x14xf32> loc("layers.0.mlp.act")
    %l0_mlp_act.mul6 = stablehlo.multiply %l0_mlp_act.mul5, %l0_mlp_up_proj.dot : tensor<1x14xf32> loc("layers.0.mlp.act")
    %l0_mlp_down_proj.dot = stablehlo.dot_general %l0_mlp_act.mul6, %model.layers.0.mlp.down_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x14xf32>, tensor<18x14xf32>) -> tensor<1x18xf32> loc("layers.0.mlp.down_proj")
    %l0_post_feedforward_layernorm.add = stablehlo.add %model.layers.0.post_feedforward_layernorm.weight, %c7 : tensor<18xf32> loc("layers.0.post_feedforward_layernorm")
    %l0_post_feedforward_layernorm.mul = stablehlo.multiply %l0_mlp_down_proj.dot, %l0_mlp_down_proj.dot : tensor<1x18xf32> loc("layers.0.post_feedforward_layernorm")
    %l0_post_feedforward_layernorm.red = stablehlo.reduce(%l0_post_feedforward_layernorm.mul init: %c8) applies stablehlo.add across dimensions = [1] : (tensor<1x18xf32>, tensor<f32>) -> tensor<1xf32> loc("layers.0.post_feedforward_layernorm")
    %l0_post_feedforward_layernorm.mul1 = stablehlo.multiply %l0_post_feedforward_layernorm.red, %c9 : tensor<1xf32> loc("layers.0.post_feedforward_layernorm")
    %l0_post_feedforward_layernorm.add1 = stablehlo.add %l0_post_feedforward_layernorm.mul1, %c10 : tensor<1xf32> loc("layers.0.post_feedforward_layernorm")
    %l0_post_feedforward_layernorm.rsqrt = stablehlo.rsqrt %l0_post_feedforward_layernorm.add1 : tensor<1xf32> loc("layers.0.post_feedforward_layernorm")
    %l0_post_feedforward_layernorm.bc = stablehlo.broadcast_in_dim %l0_post_feedforward_layernorm.rsqrt, dims = [0] : (tensor<1xf32>) -> tensor<1x18xf32> loc("layers.0.post_feedforward_layernorm")
    %l0_post_feedforward_layernorm.mul2 = stablehlo.multiply %l0_mlp_down_proj.dot, %l0_post_feedforward_layernorm.bc : tensor<1x18xf32> loc("layers.0.post_feedforward_layernorm")
    %l0_post_feedforward_layernorm.bc1 = stablehlo.broadcast_in_dim %l0_post_feedforward_layernorm.add, dims = [1] : (tensor<18xf32>) -> tensor<1x18xf32> loc("layers.0.post_feedforward_layernorm")
    %l0_post_feedforward_layernorm.mul3 = stablehlo.multiply %l0_post_feedforward_layernorm.mul2, %l0_post_feedforward_layernorm.bc1 : tensor<1x18xf32> loc("layers.0.post_feedforward_layernorm")
    %l0.add1 = stablehlo.add %l0.add, %l0_post_feedforward_layernorm.mul3 : tensor<1x18xf32> loc("layers.0")
    %l1_input_layernorm.add = stablehlo.add %model.layers.1.input_layernorm.weight, %c7 : tensor<18xf32> loc("layers.1.input_layernorm")
    %l1_input_layernorm.mul = stablehlo.multiply %l0.add1, %l0.add1 : tensor<1x18xf32> loc("layers.1.input_layernorm")
    %l1_input_layernorm.red = stablehlo.reduce(%l1_input_layernorm.mul init: %c8) applies stablehlo.add across dimensions = [1] : (tensor<1x18xf32>, tensor<f32>) -> tensor<1xf32> loc("layers.1.input_layernorm")
    %l1_input_layernorm.mul1 = stablehlo.multiply %l1_input_layernorm.red, %c9 : tensor<1xf32> loc("layers.1.input_layernorm")
    %l1_input_layernorm.add1 = stablehlo.add %l1_input_layernorm.mul1, %c10 : tensor<1xf32> loc("layers.1.input_layernorm")
    %l1_input_layernorm.rsqrt = stablehlo.rsqrt %l1_input_layernorm.add1 : tensor<1xf32> loc("layers.1.input_layernorm")
    %l1_input_layernorm.bc = stablehlo.broadcast_in_dim %l1_input_layernorm.rsqrt, dims = [0] : (tensor<1xf32>) -> tensor<1x18xf32> loc("layers.1.input_layernorm")
    %l1_input_layernorm.mul2 = stablehlo.multiply %l0.add1, %l1_input_layernorm.bc : tensor<1x18xf32> loc("layers.1.input_layernorm")
    %l1_input_layernorm.bc1 = stablehlo.broadcast_in_dim %l1_input_layernorm.add, dims = [1] : (tensor<18xf32>) -> tensor<1x18xf32> loc("layers.1.input_layernorm")
    %l1_input_layernorm.mul3 = stablehlo.multiply %l1_input_layernorm.mul2, %l1_input_layernorm.bc1 : tensor<1x18xf32> loc("layers.1.input_layernorm")
    %l1_self_attn_q_proj.dot = stablehlo.dot_general %l1_input_layernorm.mul3, %model.layers.1.self_attn.q_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x18xf32>, tensor<24x18xf32>) -> tensor<1x24xf32> loc("layers.1.self_attn.q_proj")
    %l1_self_attn_q_proj.r = stablehlo.reshape %l1_self_attn_q_proj.dot : (tensor<1x24xf32>) -> tensor<1x6x4xf32> loc("layers.1.self_attn.q_proj")
    %l1_self_attn_k_proj.dot = stablehlo.dot_general %l1_input_layernorm.mul3, %model.layers.1.self_attn.k_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x18xf32>, tensor<8x18xf32>) -> tensor<1x8xf32> loc("layers.1.self_attn.k_proj")
    %l1_self_attn_k_proj.r = stablehlo.reshape %l1_self_attn_k_proj.dot : (tensor<1x8xf32>) -> tensor<1x2x4xf32> loc("layers.1.self_attn.k_proj")
    %l1_self_attn_v_proj.dot = stablehlo.dot_general %l1_input_layernorm.mul3, %model.layers.1.self_attn.v_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x18xf32>, tensor<8x18xf32>) -> tensor<1x8xf32> loc("layers.1.self_attn.v_proj")
    %l1_self_attn_v_proj.r = stablehlo.reshape %l1_self_attn_v_proj.dot : (tensor<1x8xf32>) -> tensor<1x2x4xf32> loc("layers.1.self_attn.v_proj")
    %l1_self_attn_q_norm.add = stablehlo.add %model.layers.1.self_attn.q_norm.weight, %c11 : tensor<4xf32> loc("layers.1.self_attn.q_norm")
    %l1_self_attn_q_norm.mul = stablehlo.multiply %l1_self_attn_q_proj.r, %l1_self_attn_q_proj.r : tensor<1x6x4xf32> loc("layers.1.self_attn.q_norm")
    %l1_self_attn_q_norm.red = stablehlo.reduce(%l1_self_attn_q_norm.mul init: %c8) applies stablehlo.add across dimensions = [2] : (tensor<1x6x4xf32>, tensor<f32>) -> tensor<1x6xf32> loc("layers.1.self_attn.q_norm")
    %l1_self_attn_q_norm.mul1 = stablehlo.multiply %l1_self_attn_q_norm.red, %c12 : tensor<1x6xf32> loc("layers.1.self_attn.q_norm")
    %l1_self_attn_q_norm.add1 = stablehlo.add %l1_self_attn_q_norm.mul1, %c13 : tensor<1x6xf32> loc("layers.1.self_attn.q_norm")
    %l1_self_attn_q_norm.rsqrt = stablehlo.rsqrt %l1_self_attn_q_norm.add1 : tensor<1x6xf32> loc("layers.1.self_attn.q_norm")
    %l1_self_attn_q_norm.bc = stablehlo.broadcast_in_dim %l1_self_attn_q_norm.rsqrt, dims = [0, 1] : (tensor<1x6xf32>) -> tensor<1x6x4xf32> loc("layers.1.self_attn.q_norm")
    %l1_self_attn_q_norm.mul2 = stablehlo.multiply %l1_self_attn_q_proj.r, %l1_self_attn_q_norm.bc : tensor<1x6x4xf32> loc("layers.1.self_attn.q_norm")
    %l1_self_attn_q_norm.bc1 = stablehlo.broadcast_in_dim %l1_self_attn_q_norm.add, dims = [2] : (tensor<4xf32>) -> tensor<1x6x4xf32> loc("layers.1.self_attn.q_norm")
    %l1_self_attn_q_norm.mul3 = stablehlo.multiply %l1_self_attn_q_norm.mul2, %l1_self_attn_q_norm.bc1 : tensor<1x6x4xf32> loc("layers.1.self_attn.q_norm")
    %l1_self_attn_k_norm.add = stablehlo.add %model.layers.1.self_attn.k_norm.weight, %c11 : tensor<4xf32> loc("layers.1.self_attn.k_norm")
    %l1_self_attn_k_norm.mul = stablehlo.multiply %l1_self_attn_k_proj.r, %l1_self_attn_k_proj.r : tensor<1x2x4xf32> loc("layers.1.self_attn.k_norm")
    %l1_self_attn_k_norm.red = stablehlo.reduce(%l1_self_attn_k_norm.mul init: %c8) applies stablehlo.add across dimensions = [2] : (tensor<1x2x4xf32>, tensor<f32>) -> tensor<1x2xf32> loc("layers.1.self_attn.k_norm")
    %l1_self_attn_k_norm.mul1 = stablehlo.multiply %l1_self_attn_k_norm.red, %c14 : tensor<1x2xf32> loc("layers.1.self_attn.k_norm")
    %l1_self_attn_k_norm.add1 = stablehlo.add %l1_self_attn_k_norm.mul1, %c15 : tensor<1x2xf32> loc("layers.1.self_attn.k_norm")
    %l1_self_attn_k_norm.rsqrt = stablehlo.rsqrt %l1_self_attn_k_norm.add1 : tensor<1x2xf32> loc("layers.1.self_attn.k_norm")
    %l1_self_attn_k_norm.bc = stablehlo.broadcast_in_dim %l1_self_attn_k_norm.rsqrt, dims = [0, 1] : (tensor<1x2xf32>) -> tensor<1x2x4xf32> loc("layers.1.self_attn.k_norm")
    %l1_self_attn_k_norm.mul2 = stablehlo.multiply %l1_self_attn_k_proj.r, %l1_self_attn_k_norm.bc : tensor<1x2x4xf32> loc("layers.1.self_attn.k_norm")
    %l1_self_attn_k_norm.bc1 = stablehlo.broadcast_in_dim %l1_self_attn_k_norm.add, dims = [2] : (tensor<4xf32>) -> tensor<1x2x4xf32> loc("layers.1.self_attn.k_norm")
    %l1_self_attn_k_norm.mul3 = stablehlo.multiply %l1_self_attn_k_norm.mul2, %l1_self_attn_k_norm.bc1 : tensor<1x2x4xf32> loc("layers.1.self_attn.k_norm")
    %l1_self_attn_q_rope.r = stablehlo.reshape %l1_self_attn_q_norm.mul3 : (tensor<1x6x4xf32>) -> tensor<1x6x2x2xf32> loc("layers.1.self_attn.q_rope")
    %l1_self_attn_q_rope.bc = stablehlo.broadcast_in_dim %ds2, dims = [0, 2, 3] : (tensor<1x2x2xf32>) -> tensor<1x6x2x2xf32> loc("layers.1.self_attn.q_rope")
    %l1_self_attn_q_rope.bc1 = stablehlo.broadcast_in_dim %ds3, dims = [0, 2, 3] : (tensor<1x2x2xf32>) -> tensor<1x6x2x2xf32> loc("layers.1.self_attn.q_rope")
    %l1_self_attn_q_rope.rev = stablehlo.reverse %l1_self_attn_q_rope.r, dims = [2] : tensor<1x6x2x2xf32> loc("layers.1.self_attn.q_rope")
    %l1_self_attn_q_rope.mul = stablehlo.multiply %l1_self_attn_q_rope.r, %l1_self_attn_q_rope.bc : tensor<1x6x2x2xf32> loc("layers.1.self_attn.q_rope")
    %l1_self_attn_q_rope.mul1 = stablehlo.multiply %l1_self_attn_q_rope.rev, %l1_self_attn_q_rope.bc1 : tensor<1x6x2x2xf32> loc("layers.1.self_attn.q_rope")
    %l1_self_attn_q_rope.add = stablehlo.add %l1_self_attn_q_rope.mul, %l1_self_attn_q_rope.mul1 : tensor<1x6x2x2xf32> loc("layers.1.self_attn.q_rope")
    %l1_self_attn_q_rope.r1 = stablehlo.reshape %l1_self_attn_q_rope.add : (tensor<1x6x2x2xf32>) -> tensor<1x6x4xf32> loc("layers.1.self_attn.q_rope")
    %l1_self_attn_k_rope.r = stablehlo.reshape %l1_self_attn_k_norm.mul3 : (tensor<1x2x4xf32>) -> tensor<1x2x2x2xf32> loc("layers.1.self_attn.k_rope")
    %l1_self_attn_k_rope.bc = stablehlo.broadcast_in_dim %ds2, dims = [0, 2, 3] : (tensor<1x2x2xf32>) -> tensor<1x2x2x2xf32> loc("layers.1.self_attn.k_rope")
    %l1_self_attn_k_rope.bc1 = stablehlo.broadcast_in_dim %ds3, dims = [0, 2, 3] : (tensor<1x2x2xf32>) -> tensor<1x2x2x2xf32> loc("layers.1.self_attn.k_rope")
    %l1_self_attn_k_rope.rev = stablehlo.reverse %l1_self_attn_k_rope.r, dims = [2] : tensor<1x2x2x2xf32> loc("layers.1.self_attn.k_rope")
    %l1_self_attn_k_rope.mul = stablehlo.multiply %l1_self_attn_k_rope.r, %l1_self_attn_k_rope.bc : tensor<1x2x2x2xf32> loc("layers.1.self_attn.k_rope")
    %l1_self_attn_k_rope.mul1 = stablehlo.multiply %l1_self_attn_k_rope.rev, %l1_self_attn_k_rope.bc1 : tensor<1x2x2x2xf32> loc("layers.1.self_attn.k_rope")
    %l1_self_attn_k_rope.add = stablehlo.add %l1_self_attn_k_rope.mul, %l1_self_attn_k_rope.mul1 : tensor<1x2x2x2xf32> loc("layers.1.self_attn.k_rope")
    %l1_self_attn_k_rope.r1 = stablehlo.reshape %l1_self_attn_k_rope.add : (tensor<1x2x2x2xf32>) -> tensor<1x2x4xf32> loc("layers.1.self_attn.k_rope")
    %c23 = stablehlo.constant dense<1> : tensor<i32>
    %l1_self_attn_k_cache.ds = stablehlo.dynamic_slice %add, %c23, sizes = [1] : (tensor<2xi32>, tensor<i32>) -> tensor<1xi32> loc("layers.1.self_attn.k_cache")
    %l1_self_attn_k_cache.r = stablehlo.reshape %l1_self_attn_k_cache.ds : (tensor<1xi32>) -> tensor<i32> loc("layers.1.self_attn.k_cache")
    %l1_self_attn_k_cache.r1 = stablehlo.reshape %l1_self_attn_k_rope.r1 : (tensor<1x2x4xf32>) -> tensor<1x2x1x4xf32> loc("layers.1.self_attn.k_cache")
    %l1_self_attn_k_cache.dus = stablehlo.dynamic_update_slice %l0_self_attn_k_cache.dus, %l1_self_attn_k_cache.r1, %l1_self_attn_k_cache.r, %c, %position, %c : (tensor<2x2x5x4xf32>, tensor<1x2x1x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x5x4xf32> loc("layers.1.self_attn.k_cache")
    %l1_self_attn_k_cache.ds1 = stablehlo.dynamic_slice %l1_self_attn_k_cache.dus, %l1_self_attn_k_cache.r, %c, %c, %c, sizes = [1, 2, 5, 4] : (tensor<2x2x5x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x5x4xf32> loc("layers.1.self_attn.k_cache")
    %l1_self_attn_k_cache.r2 = stablehlo.reshape %l1_self_attn_k_cache.ds1 : (tensor<1x2x5x4xf32>) -> tensor<2x5x4xf32> loc("layers.1.self_attn.k_cache")
    %l1_self_attn_v_cache.ds = stablehlo.dynamic_slice %add, %c23, sizes = [1] : (tensor<2xi32>, tensor<i32>) -> tensor<1xi32> loc("layers.1.self_attn.v_cache")
    %l1_self_attn_v_cache.r = stablehlo.reshape %l1_self_attn_v_cache.ds : (tensor<1xi32>) -> tensor<i32> loc("layers.1.self_attn.v_cache")
    %l1_self_attn_v_cache.r1 = stablehlo.reshape %l1_self_attn_v_proj.r : (tensor<1x2x4xf32>) -> tensor<1x2x1x4xf32> loc("layers.1.self_attn.v_cache")
    %l1_self_attn_v_cache.dus = stablehlo.dynamic_update_slice %l0_self_attn_v_cache.dus, %l1_self_attn_v_cache.r1, %l1_self_attn_v_cache.r, %c, %position, %c : (tensor<2x2x5x4xf32>, tensor<1x2x1x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x5x4xf32> loc("layers.1.self_attn.v_cache")
    %l1_self_attn_v_cache.ds1 = stablehlo.dynamic_slice %l1_self_attn_v_cache.dus, %l1_self_attn_v_cache.r, %c, %c, %c, sizes = [1, 2, 5, 4] : (tensor<2x2x5x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x5x4xf32> loc("layers.1.self_attn.v_cache")
    %l1_self_attn_v_cache.r2 = stablehlo.reshape %l1_self_attn_v_cache.ds1 : (tensor<1x2x5x4xf32>) -> tensor<2x5x4xf32> loc("layers.1.self_attn.v_cache")
    %l1_self_attn_scores.r = stablehlo.reshape %l1_self_attn_q_rope.r1 : (tensor<1x6x4xf32>) -> tensor<1x2x3x4xf32> loc("layers.1.self_attn.scores")
    %l1_self_attn_scores.dot = stablehlo.dot_general %l1_self_attn_scores.r, %l1_self_attn_k_cache.r2, batching_dims = [1] x [0], contracting_dims = [3] x [2], precision = [HIGHEST, HIGHEST] : (tensor<1x2x3x4xf32>, tensor<2x5x4xf32>) -> tensor<2x1x3x5xf32> loc("layers.1.self_attn.scores")
    %l1_self_attn_scores.mul = stablehlo.multiply %l1_self_attn_scores.dot, %c16 : tensor<2x1x3x5xf32> loc("layers.1.self_attn.scores")
    %l1_self_attn_scores.bc = stablehlo.broadcast_in_dim %cmp2, dims = [3] : (tensor<5xi1>) -> tensor<2x1x3x5xi1> loc("layers.1.self_attn.scores")
    %l1_self_attn_scores.sel = stablehlo.select %l1_self_attn_scores.bc, %l1_self_attn_scores.mul, %c17 : tensor<2x1x3x5xi1>, tensor<2x1x3x5xf32> loc("layers.1.self_attn.scores")
    %l1_self_attn_probs.red = stablehlo.reduce(%l1_self_attn_scores.sel init: %c18) applies stablehlo.maximum across dimensions = [3] : (tensor<2x1x3x5xf32>, tensor<f32>) -> tensor<2x1x3xf32> loc("layers.1.self_attn.probs")
    %l1_self_attn_probs.bc = stablehlo.broadcast_in_dim %l1_self_attn_probs.red, dims = [0, 1, 2] : (tensor<2x1x3xf32>) -> tensor<2x1x3x5xf32> loc("layers.1.self_attn.probs")
    %l1_self_attn_probs.sub = stablehlo.subtract %l1_self_attn_scores.sel, %l1_self_attn_probs.bc : tensor<2x1x3x5xf32> loc("layers.1.self_attn.probs")
    %l1_self_attn_probs.exponential = stablehlo.exponential %l1_self_attn_probs.sub : tensor<2x1x3x5xf32> loc("layers.1.self_attn.probs")
    %l1_self_attn_probs.red1 = stablehlo.reduce(%l1_self_attn_probs.exponential init: %c8) applies stablehlo.add across dimensions = [3] : (tensor<2x1x3x5xf32>, tensor<f32>) -> tensor<2x1x3xf32> loc("layers.1.self_attn.probs")
    %l1_self_attn_probs.bc1 = stablehlo.broadcast_in_dim %l1_self_attn_probs.red1, dims = [0, 1, 2] : (tensor<2x1x3xf32>) -> tensor<2x1x3x5xf32> loc("layers.1.self_attn.probs")
    %l1_self_attn_probs.div = stablehlo.divide %l1_self_attn_probs.exponential, %l1_self_attn_probs.bc1 : tensor<2x1x3x5xf32> loc("layers.1.self_attn.probs")
    %l1_self_attn_context.dot = stablehlo.dot_general %l1_self_attn_probs.div, %l1_self_attn_v_cache.r2, batching_dims = [0] x [0], contracting_dims = [3] x [1], precision = [HIGHEST, HIGHEST] : (tensor<2x1x3x5xf32>, tensor<2x5x4xf32>) -> tensor<2x1x3x4xf32> loc("layers.1.self_attn.context")
    %l1_self_attn_context.r = stablehlo.reshape %l1_self_attn_context.dot : (tensor<2x1x3x4xf32>) -> tensor<1x24xf32> loc("layers.1.self_attn.context")
    %l1_self_attn_o_proj.dot = stablehlo.dot_general %l1_self_attn_context.r, %model.layers.1.self_attn.o_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x24xf32>, tensor<18x24xf32>) -> tensor<1x18xf32> loc("layers.1.self_attn.o_proj")
    %l1_post_attention_layernorm.add = stablehlo.add %model.layers.1.post_attention_layernorm.weight, %c7 : tensor<18xf32> loc("layers.1.post_attention_layernorm")
    %l1_post_attention_layernorm.mul = stablehlo.multiply %l1_self_attn_o_proj.dot, %l1_self_attn_o_proj.dot : tensor<1x18xf32> loc("layers.1.post_attention_layernorm")
    %l1_post_attention_layernorm.red = stablehlo.reduce(%l1_post_attention_layernorm.mul init: %c8) applies stablehlo.add across dimensions = [1] : (tensor<1x18xf32>, tensor<f32>) -> tensor<1xf32> loc("layers.1.post_attention_layernorm")
    %l1_post_attention_layernorm.mul1 = stablehlo.multiply %l1_post_attention_layernorm.red, %c9 : tensor<1xf32> loc("layers.1.post_attention_layernorm")
    %l1_post_attention_layernorm.add1 = stablehlo.add %l1_post_attention_layernorm.mul1, %c10 : tensor<1xf32> loc("layers.1.post_attention_layernorm")
    %l1_post_attention_layernorm.rsqrt = stablehlo.rsqrt %l1_post_attention_layernorm.add1 : tensor<1xf32> loc("layers.1.post_attention_layernorm")
    %l1_post_attention_layernorm.bc = stablehlo.broadcast_in_dim %l1_post_attention_layernorm.rsqrt, dims = [0] : (tensor<1xf32>) -> tensor<1x18xf32> loc("layers.1.post_attention_layernorm")
    %l1_post_attention_layernorm.mul2 = stablehlo.multiply %l1_self_attn_o_proj.dot, %l1_post_attention_layernorm.bc : tensor<1x18xf32> loc("layers.1.post_attention_layernorm")
    %l1_post_attention_layernorm.bc1 = stablehlo.broadcast_in_dim %l1_post_attention_layernorm.add, dims = [1] : (tensor<18xf32>) -> tensor<1x18xf32> loc("layers.1.post_attention_layernorm")
    %l1_post_attention_layernorm.mul3 = stablehlo.multiply %l1_post_attention_layernorm.mul2, %l1_post_attention_layernorm.bc1 : tensor<1x18xf32> loc("layers.1.post_attention_layernorm")
    %l1.add = stablehlo.add %l0.add1, %l1_post_attention_layernorm.mul3 : tensor<1x18xf32> loc("layers.1")
    %l1_pre_feedforward_layernorm.add = stablehlo.add %model.layers.1.pre_feedforward_layernorm.weight, %c7 : tensor<18xf32> loc("layers.1.pre_feedforward_layernorm")
    %l1_pre_feedforward_layernorm.mul = stablehlo.multiply %l1.add, %l1.add : tensor<1x18xf32> loc("layers.1.pre_feedforward_layernorm")
    %l1_pre_feedforward_layernorm.red = stablehlo.reduce(%l1_pre_feedforward_layernorm.mul init: %c8) applies stablehlo.add across dimensions = [1] : (tensor<1x18xf32>, tensor<f32>) -> tensor<1xf32> loc("layers.1.pre_feedforward_layernorm")
    %l1_pre_feedforward_layernorm.mul1 = stablehlo.multiply %l1_pre_feedforward_layernorm.red, %c9 : tensor<1xf32> loc("layers.1.pre_feedforward_layernorm")
    %l1_pre_feedforward_layernorm.add1 = stablehlo.add %l1_pre_feedforward_layernorm.mul1, %c10 : tensor<1xf32> loc("layers.1.pre_feedforward_layernorm")
    %l1_pre_feedforward_layernorm.rsqrt = stablehlo.rsqrt %l1_pre_feedforward_layernorm.add1 : tensor<1xf32> loc("layers.1.pre_feedforward_layernorm")
    %l1_pre_feedforward_layernorm.bc = stablehlo.broadcast_in_dim %l1_pre_feedforward_layernorm.rsqrt, dims = [0] : (tensor<1xf32>) -> tensor<1x18xf32> loc("layers.1.pre_feedforward_layernorm")
    %l1_pre_feedforward_layernorm.mul2 = stablehlo.multiply %l1.add, %l1_pre_feedforward_layernorm.bc : tensor<1x18xf32> loc("layers.1.pre_feedforward_layernorm")
    %l1_pre_feedforward_layernorm.bc1 = stablehlo.broadcast_in_dim %l1_pre_feedforward_layernorm.add, dims = [1] : (tensor<18xf32>) -> tensor<1x18xf32> loc("layers.1.pre_feedforward_layernorm")
    %l1_pre_feedforward_layernorm.mul3 = stablehlo.multiply %l1_pre_feedforward_layernorm.mul2, %l1_pre_feedforward_layernorm.bc1 : tensor<1x18xf32> loc("layers.1.pre_feedforward_layernorm")
    %l1_mlp_gate_proj.dot = stablehlo.dot_general %l1_pre_feedforward_layernorm.mul3, %model.layers.1.mlp.gate_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x18xf32>, tensor<14x18xf32>) -> tensor<1x14xf32> loc("layers.1.mlp.gate_proj")
    %l1_mlp_up_proj.dot = stablehlo.dot_general %l1_pre_feedforward_layernorm.mul3, %model.layers.1.mlp.up_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x18xf32>, tensor<14x18xf32>) -> tensor<1x14xf32> loc("layers.1.mlp.up_proj")
    %l1_mlp_act.mul = stablehlo.multiply %l1_mlp_gate_proj.dot, %l1_mlp_gate_proj.dot : tensor<1x14xf32> loc("layers.1.mlp.act")
    %l1_mlp_act.mul1 = stablehlo.multiply %l1_mlp_act.mul, %l1_mlp_gate_proj.dot : tensor<1x14xf32> loc("layers.1.mlp.act")
    %l1_mlp_act.mul2 = stablehlo.multiply %l1_mlp_act.mul1, %c19 : tensor<1x14xf32> loc("layers.1.mlp.act")
    %l1_mlp_act.add = stablehlo.add %l1_mlp_gate_proj.dot, %l1_mlp_act.mul2 : tensor<1x14xf32> loc("layers.1.mlp.act")
    %l1_mlp_act.mul3 = stablehlo.multiply %l1_mlp_act.add, %c20 : tensor<1x14xf32> loc("layers.1.mlp.act")
    %l1_mlp_act.mul4 = stablehlo.multiply %l1_mlp_gate_proj.dot, %c21 : tensor<1x14xf32> loc("layers.1.mlp.act")
    %l1_mlp_act.tanh = stablehlo.tanh %l1_mlp_act.mul3 : tensor<1x14xf32> loc("layers.1.mlp.act")
    %l1_mlp_act.add1 = stablehlo.add %l1_mlp_act.tanh, %c22 : tensor<1x14xf32> loc("layers.1.mlp.act")
    %l1_mlp_act.mul5 = stablehlo.multiply %l1_mlp_act.mul4, %l1_mlp_act.add1 : tensor<1x14xf32> loc("layers.1.mlp.act")
    %l1_mlp_act.mul6 = stablehlo.multiply %l1_mlp_act.mul5, %l1_mlp_up_proj.dot : tensor<1x14xf32> loc("layers.1.mlp.act")
    %l1_mlp_down_proj.dot = stablehlo.dot_general %l1_mlp_act.mul6, %model.layers.1.mlp.down_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x14xf32>, tensor<18x14xf32>) -> tensor<1x18xf32> loc("layers.1.mlp.down_proj")
    %l1_post_feedforward_layernorm.add = stablehlo.add %model.layers.1.post_feedforward_layernorm.weight, %c7 : tensor<18xf32> loc("layers.1.post_feedforward_layernorm")
    %l1_post_feedforward_layernorm.mul = stablehlo.multiply %l1_mlp_down_proj.dot, %l1_mlp_down_proj.dot : tensor<1x18xf32> loc("layers.1.post_feedforward_layernorm")
    %l1_post_feedforward_layernorm.red = stablehlo.reduce(%l1_post_feedforward_layernorm.mul init: %c8) applies stablehlo.add across dimensions = [1] : (tensor<1x18xf32>, tensor<f32>) -> tensor<1xf32> loc("layers.1.post_feedforward_layernorm")
    %l1_post_feedforward_layernorm.mul1 = stablehlo.multiply %l1_post_feedforward_layernorm.red, %c9 : tensor<1xf32> loc("layers.1.post_feedforward_layernorm")
    %l1_post_feedforward_layernorm.add1 = stablehlo.add %l1_post_feedforward_layernorm.mul1, %c10 : tensor<1xf32> loc("layers.1.post_feedforward_layernorm")
    %l1_post_feedforward_layernorm.rsqrt = stablehlo.rsqrt %l1_post_feedforward_layernorm.add1 : tensor<1xf32> loc("layers.1.post_feedforward_layernorm")
    %l1_post_feedforward_layernorm.bc = stablehlo.broadcast_in_dim %l1_post_feedforward_layernorm.rsqrt, dims = [0] : (tensor<1xf32>) -> tensor<1x18xf32> loc("layers.1.post_feedforward_layernorm")
    %l1_post_feedforward_layernorm.mul2 = stablehlo.multiply %l1_mlp_down_proj.dot, %l1_post_feedforward_layernorm.bc : tensor<1x18xf32> loc("layers.1.post_feedforward_layernorm")
    %l1_post_feedforward_layernorm.bc1 = stablehlo.broadcast_in_dim %l1_post_feedforward_layernorm.add, dims = [1] : (tensor<18xf32>) -> tensor<1x18xf32> loc("layers.1.post_feedforward_layernorm")
    %l1_post_feedforward_layernorm.mul3 = stablehlo.multiply %l1_post_feedforward_layernorm.mul2, %l1_post_feedforward_layernorm.bc1 : tensor<1x18xf32> loc("layers.1.post_feedforward_layernorm")
    %l1.add1 = stablehlo.add %l1.add, %l1_post_feedforward_layernorm.mul3 : tensor<1x18xf32> loc("layers.1")
    %norm.add = stablehlo.add %model.norm.weight, %c7 : tensor<18xf32> loc("norm")
    %norm.mul = stablehlo.multiply %l1.add1, %l1.add1 : tensor<1x18xf32> loc("norm")
    %norm.red = stablehlo.reduce(%norm.mul init: %c8) applies stablehlo.add across dimensions = [1] : (tensor<1x18xf32>, tensor<f32>) -> tensor<1xf32> loc("norm")
    %norm.mul1 = stablehlo.multiply %norm.red, %c9 : tensor<1xf32> loc("norm")
    %norm.add1 = stablehlo.add %norm.mul1, %c10 : tensor<1xf32> loc("norm")
    %norm.rsqrt = stablehlo.rsqrt %norm.add1 : tensor<1xf32> loc("norm")
    %norm.bc = stablehlo.broadcast_in_dim %norm.rsqrt, dims = [0] : (tensor<1xf32>) -> tensor<1x18xf32> loc("norm")
    %norm.mul2 = stablehlo.multiply %l1.add1, %norm.bc : tensor<1x18xf32> loc("norm")
    %norm.bc1 = stablehlo.broadcast_in_dim %norm.add, dims = [1] : (tensor<18xf32>) -> tensor<1x18xf32> loc("norm")
    %norm.mul3 = stablehlo.multiply %norm.mul2, %norm.bc1 : tensor<1x18xf32> loc("norm")
    %lm_head.dot = stablehlo.dot_general %norm.mul3, %model.embed_tokens.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x18xf32>, tensor<17x18xf32>) -> tensor<1x17xf32> loc("lm_head")
    %lm_head.r = stablehlo.reshape %lm_head.dot : (tensor<1x17xf32>) -> tensor<17xf32> loc("lm_head")
    func.return %lm_head.r, %l1_self_attn_k_cache.dus, %l1_self_attn_v_cache.dus : tensor<17xf32>, tensor<2x2x5x4xf32>, tensor<2x2x5x4xf32>
  }
}
