module @smollm3_decode_logits {
  func.func public @main(
    %model.embed_tokens.weight: tensor<17x10xf32>,
    %model.layers.0.input_layernorm.weight: tensor<10xf32>,
    %model.layers.0.self_attn.q_proj.weight: tensor<24x10xf32>,
    %model.layers.0.self_attn.k_proj.weight: tensor<8x10xf32>,
    %model.layers.0.self_attn.v_proj.weight: tensor<8x10xf32>,
    %model.layers.0.self_attn.o_proj.weight: tensor<10x24xf32>,
    %model.layers.0.post_attention_layernorm.weight: tensor<10xf32>,
    %model.layers.0.mlp.gate_proj.weight: tensor<14x10xf32>,
    %model.layers.0.mlp.up_proj.weight: tensor<14x10xf32>,
    %model.layers.0.mlp.down_proj.weight: tensor<10x14xf32>,
    %model.layers.1.input_layernorm.weight: tensor<10xf32>,
    %model.layers.1.self_attn.q_proj.weight: tensor<24x10xf32>,
    %model.layers.1.self_attn.k_proj.weight: tensor<8x10xf32>,
    %model.layers.1.self_attn.v_proj.weight: tensor<8x10xf32>,
    %model.layers.1.self_attn.o_proj.weight: tensor<10x24xf32>,
    %model.layers.1.post_attention_layernorm.weight: tensor<10xf32>,
    %model.layers.1.mlp.gate_proj.weight: tensor<14x10xf32>,
    %model.layers.1.mlp.up_proj.weight: tensor<14x10xf32>,
    %model.layers.1.mlp.down_proj.weight: tensor<10x14xf32>,
    %model.norm.weight: tensor<10xf32>,
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
    %iota2 = stablehlo.iota dim = 0 : tensor<5xi32>
    %bc2 = stablehlo.broadcast_in_dim %position, dims = [] : (tensor<i32>) -> tensor<5xi32>
    %cmp1 = stablehlo.compare LE, %iota2, %bc2, SIGNED : (tensor<5xi32>, tensor<5xi32>) -> tensor<5xi1>
    %c1 = stablehlo.constant dense<2> : tensor<5xi32>
    %add1 = stablehlo.add %iota2, %c1 : tensor<5xi32>
    %bc3 = stablehlo.broadcast_in_dim %position, dims = [] : (tensor<i32>) -> tensor<5xi32>
    %cmp2 = stablehlo.compare GT, %add1, %bc3, SIGNED : (tensor<5xi32>, tensor<5xi32>) -> tensor<5xi1>
    %and = stablehlo.and %cmp1, %cmp2 : tensor<5xi1>
    %c2 = stablehlo.constant dense<"0x0000803F0000803F0000803F0000803F40510A3FB9FC7F3F40510A3FB9FC7F3F3311D5BEE5F27F3F3311D5BEE5F27F3F26707DBF83E27F3F26707DBF83E27F3F305527BF94CB7F3F305527BF94CB7F3F"> : tensor<5x2x2xf32>
    %ds = stablehlo.dynamic_slice %c2, %position, %c, %c, sizes = [1, 2, 2] : (tensor<5x2x2xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x2xf32>
    %c3 = stablehlo.constant dense<"0x00000080000000800000000000000000A46A57BF57D623BCA46A573F57D6233CB7C768BF3ED4A3BCB7C7683F3ED4A33CC38110BE20B9F5BCC381103E20B9F53CCFBD413FDBCB23BDCFBD41BFDBCB233D"> : tensor<5x2x2xf32>
    %ds1 = stablehlo.dynamic_slice %c3, %position, %c, %c, sizes = [1, 2, 2] : (tensor<5x2x2xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x2xf32>
    %embed_tokens.ds = stablehlo.dynamic_slice %model.embed_tokens.weight, %token, %c, sizes = [1, 10] : (tensor<17x10xf32>, tensor<i32>, tensor<i32>) -> tensor<1x10xf32> loc("embed_tokens")
    %l0_input_layernorm.mul = stablehlo.multiply %embed_tokens.ds, %embed_tokens.ds : tensor<1x10xf32> loc("layers.0.input_layernorm")
    %c4 = stablehlo.constant dense<0.0> : tensor<f32>
    %l0_input_layernorm.red = stablehlo.reduce(%l0_input_layernorm.mul init: %c4) applies stablehlo.add across dimensions = [1] : (tensor<1x10xf32>, tensor<f32>) -> tensor<1xf32> loc("layers.0.input_layernorm")
    %c5 = stablehlo.constant dense<0.1> : tensor<1xf32>
    %l0_input_layernorm.mul1 = stablehlo.multiply %l0_input_layernorm.red, %c5 : tensor<1xf32> loc("layers.0.input_layernorm")
    %c6 = stablehlo.constant dense<3.0e-05> : tensor<1xf32>
    %l0_input_layernorm.add = stablehlo.add %l0_input_layernorm.mul1, %c6 : tensor<1xf32> loc("layers.0.input_layernorm")
    %l0_input_layernorm.rsqrt = stablehlo.rsqrt %l0_input_layernorm.add : tensor<1xf32> loc("layers.0.input_layernorm")
    %l0_input_layernorm.bc = stablehlo.broadcast_in_dim %l0_input_layernorm.rsqrt, dims = [0] : (tensor<1xf32>) -> tensor<1x10xf32> loc("layers.0.input_layernorm")
    %l0_input_layernorm.mul2 = stablehlo.multiply %embed_tokens.ds, %l0_input_layernorm.bc : tensor<1x10xf32> loc("layers.0.input_layernorm")
    %l0_input_layernorm.bc1 = stablehlo.broadcast_in_dim %model.layers.0.input_layernorm.weight, dims = [1] : (tensor<10xf32>) -> tensor<1x10xf32> loc("layers.0.input_layernorm")
    %l0_input_layernorm.mul3 = stablehlo.multiply %l0_input_layernorm.mul2, %l0_input_layernorm.bc1 : tensor<1x10xf32> loc("layers.0.input_layernorm")
    %l0_self_attn_q_proj.dot = stablehlo.dot_general %l0_input_layernorm.mul3, %model.layers.0.self_attn.q_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x10xf32>, tensor<24x10xf32>) -> tensor<1x24xf32> loc("layers.0.self_attn.q_proj")
    %l0_self_attn_q_proj.r = stablehlo.reshape %l0_self_attn_q_proj.dot : (tensor<1x24xf32>) -> tensor<1x6x4xf32> loc("layers.0.self_attn.q_proj")
    %l0_self_attn_k_proj.dot = stablehlo.dot_general %l0_input_layernorm.mul3, %model.layers.0.self_attn.k_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x10xf32>, tensor<8x10xf32>) -> tensor<1x8xf32> loc("layers.0.self_attn.k_proj")
    %l0_self_attn_k_proj.r = stablehlo.reshape %l0_self_attn_k_proj.dot : (tensor<1x8xf32>) -> tensor<1x2x4xf32> loc("layers.0.self_attn.k_proj")
    %l0_self_attn_v_proj.dot = stablehlo.dot_general %l0_input_layernorm.mul3, %model.layers.0.self_attn.v_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x10xf32>, tensor<8x10xf32>) -> tensor<1x8xf32> loc("layers.0.self_attn.v_proj")
    %l0_self_attn_v_proj.r = stablehlo.reshape %l0_self_attn_v_proj.dot : (tensor<1x8xf32>) -> tensor<1x2x4xf32> loc("layers.0.self_attn.v_proj")
    %l0_self_attn_q_rope.r = stablehlo.reshape %l0_self_attn_q_proj.r : (tensor<1x6x4xf32>) -> tensor<1x6x2x2xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.bc = stablehlo.broadcast_in_dim %ds, dims = [0, 2, 3] : (tensor<1x2x2xf32>) -> tensor<1x6x2x2xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.bc1 = stablehlo.broadcast_in_dim %ds1, dims = [0, 2, 3] : (tensor<1x2x2xf32>) -> tensor<1x6x2x2xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.rev = stablehlo.reverse %l0_self_attn_q_rope.r, dims = [2] : tensor<1x6x2x2xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.mul = stablehlo.multiply %l0_self_attn_q_rope.r, %l0_self_attn_q_rope.bc : tensor<1x6x2x2xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.mul1 = stablehlo.multiply %l0_self_attn_q_rope.rev, %l0_self_attn_q_rope.bc1 : tensor<1x6x2x2xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.add = stablehlo.add %l0_self_attn_q_rope.mul, %l0_self_attn_q_rope.mul1 : tensor<1x6x2x2xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.r1 = stablehlo.reshape %l0_self_attn_q_rope.add : (tensor<1x6x2x2xf32>) -> tensor<1x6x4xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_k_rope.r = stablehlo.reshape %l0_self_attn_k_proj.r : (tensor<1x2x4xf32>) -> tensor<1x2x2x2xf32> loc("layers.0.self_attn.k_rope")
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
    %c7 = stablehlo.constant dense<0.5> : tensor<2x1x3x5xf32>
    %l0_self_attn_scores.mul = stablehlo.multiply %l0_self_attn_scores.dot, %c7 : tensor<2x1x3x5xf32> loc("layers.0.self_attn.scores")
    %l0_self_attn_scores.bc = stablehlo.broadcast_in_dim %cmp, dims = [3] : (tensor<5xi1>) -> tensor<2x1x3x5xi1> loc("layers.0.self_attn.scores")
    %c8 = stablehlo.constant dense<0xFF800000> : tensor<2x1x3x5xf32>
    %l0_self_attn_scores.sel = stablehlo.select %l0_self_attn_scores.bc, %l0_self_attn_scores.mul, %c8 : tensor<2x1x3x5xi1>, tensor<2x1x3x5xf32> loc("layers.0.self_attn.scores")
    %c9 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %l0_self_attn_probs.red = stablehlo.reduce(%l0_self_attn_scores.sel init: %c9) applies stablehlo.maximum across dimensions = [3] : (tensor<2x1x3x5xf32>, tensor<f32>) -> tensor<2x1x3xf32> loc("layers.0.self_attn.probs")
    %l0_self_attn_probs.bc = stablehlo.broadcast_in_dim %l0_self_attn_probs.red, dims = [0, 1, 2] : (tensor<2x1x3xf32>) -> tensor<2x1x3x5xf32> loc("layers.0.self_attn.probs")
    %l0_self_attn_probs.sub = stablehlo.subtract %l0_self_attn_scores.sel, %l0_self_attn_probs.bc : tensor<2x1x3x5xf32> loc("layers.0.self_attn.probs")
    %l0_self_attn_probs.exponential = stablehlo.exponential %l0_self_attn_probs.sub : tensor<2x1x3x5xf32> loc("layers.0.self_attn.probs")
    %l0_self_attn_probs.red1 = stablehlo.reduce(%l0_self_attn_probs.exponential init: %c4) applies stablehlo.add across dimensions = [3] : (tensor<2x1x3x5xf32>, tensor<f32>) -> tensor<2x1x3xf32> loc("layers.0.self_attn.probs")
    %l0_self_attn_probs.bc1 = stablehlo.broadcast_in_dim %l0_self_attn_probs.red1, dims = [0, 1, 2] : (tensor<2x1x3xf32>) -> tensor<2x1x3x5xf32> loc("layers.0.self_attn.probs")
    %l0_self_attn_probs.div = stablehlo.divide %l0_self_attn_probs.exponential, %l0_self_attn_probs.bc1 : tensor<2x1x3x5xf32> loc("layers.0.self_attn.probs")
    %l0_self_attn_context.dot = stablehlo.dot_general %l0_self_attn_probs.div, %l0_self_attn_v_cache.r2, batching_dims = [0] x [0], contracting_dims = [3] x [1], precision = [HIGHEST, HIGHEST] : (tensor<2x1x3x5xf32>, tensor<2x5x4xf32>) -> tensor<2x1x3x4xf32> loc("layers.0.self_attn.context")
    %l0_self_attn_context.r = stablehlo.reshape %l0_self_attn_context.dot : (tensor<2x1x3x4xf32>) -> tensor<1x24xf32> loc("layers.0.self_attn.context")
    %l0_self_attn_o_proj.dot = stablehlo.dot_general %l0_self_attn_context.r, %model.layers.0.self_attn.o_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x24xf32>, tensor<10x24xf32>) -> tensor<1x10xf32> loc("layers.0.self_attn.o_proj")
    %l0.add = stablehlo.add %embed_tokens.ds, %l0_self_attn_o_proj.dot : tensor<1x10xf32> loc("layers.0")
    %l0_post_attention_layernorm.mul = stablehlo.multiply %l0.add, %l0.add : tensor<1x10xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.red = stablehlo.reduce(%l0_post_attention_layernorm.mul init: %c4) applies stablehlo.add across dimensions = [1] : (tensor<1x10xf32>, tensor<f32>) -> tensor<1xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.mul1 = stablehlo.multiply %l0_post_attention_layernorm.red, %c5 : tensor<1xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.add = stablehlo.add %l0_post_attention_layernorm.mul1, %c6 : tensor<1xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.rsqrt = stablehlo.rsqrt %l0_post_attention_layernorm.add : tensor<1xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.bc = stablehlo.broadcast_in_dim %l0_post_attention_layernorm.rsqrt, dims = [0] : (tensor<1xf32>) -> tensor<1x10xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.mul2 = stablehlo.multiply %l0.add, %l0_post_attention_layernorm.bc : tensor<1x10xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.bc1 = stablehlo.broadcast_in_dim %model.layers.0.post_attention_layernorm.weight, dims = [1] : (tensor<10xf32>) -> tensor<1x10xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.mul3 = stablehlo.multiply %l0_post_attention_layernorm.mul2, %l0_post_attention_layernorm.bc1 : tensor<1x10xf32> loc("layers.0.post_attention_layernorm")
    %l0_mlp_gate_proj.dot = stablehlo.dot_general %l0_post_attention_layernorm.mul3, %model.layers.0.mlp.gate_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x10xf32>, tensor<14x10xf32>) -> tensor<1x14xf32> loc("layers.0.mlp.gate_proj")
    %l0_mlp_up_proj.dot = stablehlo.dot_general %l0_post_attention_layernorm.mul3, %model.layers.0.mlp.up_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x10xf32>, tensor<14x10xf32>) -> tensor<1x14xf32> loc("layers.0.mlp.up_proj")
    %l0_mlp_act.logistic = stablehlo.logistic %l0_mlp_gate_proj.dot : tensor<1x14xf32> loc("layers.0.mlp.act")
    %l0_mlp_act.mul = stablehlo.multiply %l0_mlp_gate_proj.dot, %l0_mlp_act.logistic : tensor<1x14xf32> loc("layers.0.mlp.act")
    %l0_mlp_act.mul1 = stablehlo.multiply %l0_mlp_act.mul, %l0_mlp_up_proj.dot : tensor<1x14xf32> loc("layers.0.mlp.act")
    %l0_mlp_down_proj.dot = stablehlo.dot_general %l0_mlp_act.mul1, %model.layers.0.mlp.down_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x14xf32>, tensor<10x14xf32>) -> tensor<1x10xf32> loc("layers.0.mlp.down_proj")
    %l0.add1 = stablehlo.add %l0.add, %l0_mlp_down_proj.dot : tensor<1x10xf32> loc("layers.0")
    %l1_input_layernorm.mul = stablehlo.multiply %l0.add1, %l0.add1 : tensor<1x10xf32> loc("layers.1.input_layernorm")
    %l1_input_layernorm.red = stablehlo.reduce(%l1_input_layernorm.mul init: %c4) applies stablehlo.add across dimensions = [1] : (tensor<1x10xf32>, tensor<f32>) -> tensor<1xf32> loc("layers.1.input_layernorm")
    %l1_input_layernorm.mul1 = stablehlo.multiply %l1_input_layernorm.red, %c5 : tensor<1xf32> loc("layers.1.input_layernorm")
    %l1_input_layernorm.add = stablehlo.add %l1_input_layernorm.mul1, %c6 : tensor<1xf32> loc("layers.1.input_layernorm")
    %l1_input_layernorm.rsqrt = stablehlo.rsqrt %l1_input_layernorm.add : tensor<1xf32> loc("layers.1.input_layernorm")
    %l1_input_layernorm.bc = stablehlo.broadcast_in_dim %l1_input_layernorm.rsqrt, dims = [0] : (tensor<1xf32>) -> tensor<1x10xf32> loc("layers.1.input_layernorm")
    %l1_input_layernorm.mul2 = stablehlo.multiply %l0.add1, %l1_input_layernorm.bc : tensor<1x10xf32> loc("layers.1.input_layernorm")
    %l1_input_layernorm.bc1 = stablehlo.broadcast_in_dim %model.layers.1.input_layernorm.weight, dims = [1] : (tensor<10xf32>) -> tensor<1x10xf32> loc("layers.1.input_layernorm")
    %l1_input_layernorm.mul3 = stablehlo.multiply %l1_input_layernorm.mul2, %l1_input_layernorm.bc1 : tensor<1x10xf32> loc("layers.1.input_layernorm")
    %l1_self_attn_q_proj.dot = stablehlo.dot_general %l1_input_layernorm.mul3, %model.layers.1.self_attn.q_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x10xf32>, tensor<24x10xf32>) -> tensor<1x24xf32> loc("layers.1.self_attn.q_proj")
    %l1_self_attn_q_proj.r = stablehlo.reshape %l1_self_attn_q_proj.dot : (tensor<1x24xf32>) -> tensor<1x6x4xf32> loc("layers.1.self_attn.q_proj")
    %l1_self_attn_k_proj.dot = stablehlo.dot_general %l1_input_layernorm.mul3, %model.layers.1.self_attn.k_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x10xf32>, tensor<8x10xf32>) -> tensor<1x8xf32> loc("layers.1.self_attn.k_proj")
    %l1_self_attn_k_proj.r = stablehlo.reshape %l1_self_attn_k_proj.dot : (tensor<1x8xf32>) -> tensor<1x2x4xf32> loc("layers.1.self_attn.k_proj")
    %l1_self_attn_v_proj.dot = stablehlo.dot_general %l1_input_layernorm.mul3, %model.layers.1.self_attn.v_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x10xf32>, tensor<8x10xf32>) -> tensor<1x8xf32> loc("layers.1.self_attn.v_proj")
    %l1_self_attn_v_proj.r = stablehlo.reshape %l1_self_attn_v_proj.dot : (tensor<1x8xf32>) -> tensor<1x2x4xf32> loc("layers.1.self_attn.v_proj")
    %c10 = stablehlo.constant dense<1> : tensor<i32>
    %l1_self_attn_k_cache.ds = stablehlo.dynamic_slice %add, %c10, sizes = [1] : (tensor<2xi32>, tensor<i32>) -> tensor<1xi32> loc("layers.1.self_attn.k_cache")
    %l1_self_attn_k_cache.r = stablehlo.reshape %l1_self_attn_k_cache.ds : (tensor<1xi32>) -> tensor<i32> loc("layers.1.self_attn.k_cache")
    %l1_self_attn_k_cache.r1 = stablehlo.reshape %l1_self_attn_k_proj.r : (tensor<1x2x4xf32>) -> tensor<1x2x1x4xf32> loc("layers.1.self_attn.k_cache")
    %l1_self_attn_k_cache.dus = stablehlo.dynamic_update_slice %l0_self_attn_k_cache.dus, %l1_self_attn_k_cache.r1, %l1_self_attn_k_cache.r, %c, %position, %c : (tensor<2x2x5x4xf32>, tensor<1x2x1x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x5x4xf32> loc("layers.1.self_attn.k_cache")
    %l1_self_attn_k_cache.ds1 = stablehlo.dynamic_slice %l1_self_attn_k_cache.dus, %l1_self_attn_k_cache.r, %c, %c, %c, sizes = [1, 2, 5, 4] : (tensor<2x2x5x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x5x4xf32> loc("layers.1.self_attn.k_cache")
    %l1_self_attn_k_cache.r2 = stablehlo.reshape %l1_self_attn_k_cache.ds1 : (tensor<1x2x5x4xf32>) -> tensor<2x5x4xf32> loc("layers.1.self_attn.k_cache")
    %l1_self_attn_v_cache.ds = stablehlo.dynamic_slice %add, %c10, sizes = [1] : (tensor<2xi32>, tensor<i32>) -> tensor<1xi32> loc("layers.1.self_attn.v_cache")
    %l1_self_attn_v_cache.r = stablehlo.reshape %l1_self_attn_v_cache.ds : (tensor<1xi32>) -> tensor<i32> loc("layers.1.self_attn.v_cache")
    %l1_self_attn_v_cache.r1 = stablehlo.reshape %l1_self_attn_v_proj.r : (tensor<1x2x4xf32>) -> tensor<1x2x1x4xf32> loc("layers.1.self_attn.v_cache")
    %l1_self_attn_v_cache.dus = stablehlo.dynamic_update_slice %l0_self_attn_v_cache.dus, %l1_self_attn_v_cache.r1, %l1_self_attn_v_cache.r, %c, %position, %c : (tensor<2x2x5x4xf32>, tensor<1x2x1x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x5x4xf32> loc("layers.1.self_attn.v_cache")
    %l1_self_attn_v_cache.ds1 = stablehlo.dynamic_slice %l1_self_attn_v_cache.dus, %l1_self_attn_v_cache.r, %c, %c, %c, sizes = [1, 2, 5, 4] : (tensor<2x2x5x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x5x4xf32> loc("layers.1.self_attn.v_cache")
    %l1_self_attn_v_cache.r2 = stablehlo.reshape %l1_self_attn_v_cache.ds1 : (tensor<1x2x5x4xf32>) -> tensor<2x5x4xf32> loc("layers.1.self_attn.v_cache")
    %l1_self_attn_scores.r = stablehlo.reshape %l1_self_attn_q_proj.r : (tensor<1x6x4xf32>) -> tensor<1x2x3x4xf32> loc("layers.1.self_attn.scores")
    %l1_self_attn_scores.dot = stablehlo.dot_general %l1_self_attn_scores.r, %l1_self_attn_k_cache.r2, batching_dims = [1] x [0], contracting_dims = [3] x [2], precision = [HIGHEST, HIGHEST] : (tensor<1x2x3x4xf32>, tensor<2x5x4xf32>) -> tensor<2x1x3x5xf32> loc("layers.1.self_attn.scores")
    %l1_self_attn_scores.mul = stablehlo.multiply %l1_self_attn_scores.dot, %c7 : tensor<2x1x3x5xf32> loc("layers.1.self_attn.scores")
    %l1_self_attn_scores.bc = stablehlo.broadcast_in_dim %and, dims = [3] : (tensor<5xi1>) -> tensor<2x1x3x5xi1> loc("layers.1.self_attn.scores")
    %l1_self_attn_scores.sel = stablehlo.select %l1_self_attn_scores.bc, %l1_self_attn_scores.mul, %c8 : tensor<2x1x3x5xi1>, tensor<2x1x3x5xf32> loc("layers.1.self_attn.scores")
    %l1_self_attn_probs.red = stablehlo.reduce(%l1_self_attn_scores.sel init: %c9) applies stablehlo.maximum across dimensions = [3] : (tensor<2x1x3x5xf32>, tensor<f32>) -> tensor<2x1x3xf32> loc("layers.1.self_attn.probs")
    %l1_self_attn_probs.bc = stablehlo.broadcast_in_dim %l1_self_attn_probs.red, dims = [0, 1, 2] : (tensor<2x1x3xf32>) -> tensor<2x1x3x5xf32> loc("layers.1.self_attn.probs")
    %l1_self_attn_probs.sub = stablehlo.subtract %l1_self_attn_scores.sel, %l1_self_attn_probs.bc : tensor<2x1x3x5xf32> loc("layers.1.self_attn.probs")
    %l1_self_attn_probs.exponential = stablehlo.exponential %l1_self_attn_probs.sub : tensor<2x1x3x5xf32> loc("layers.1.self_attn.probs")
    %l1_self_attn_probs.red1 = stablehlo.reduce(%l1_self_attn_probs.exponential init: %c4) applies stablehlo.add across dimensions = [3] : (tensor<2x1x3x5xf32>, tensor<f32>) -> tensor<2x1x3xf32> loc("layers.1.self_attn.probs")
    %l1_self_attn_probs.bc1 = stablehlo.broadcast_in_dim %l1_self_attn_probs.red1, dims = [0, 1, 2] : (tensor<2x1x3xf32>) -> tensor<2x1x3x5xf32> loc("layers.1.self_attn.probs")
    %l1_self_attn_probs.div = stablehlo.divide %l1_self_attn_probs.exponential, %l1_self_attn_probs.bc1 : tensor<2x1x3x5xf32> loc("layers.1.self_attn.probs")
    %l1_self_attn_context.dot = stablehlo.dot_general %l1_self_attn_probs.div, %l1_self_attn_v_cache.r2, batching_dims = [0] x [0], contracting_dims = [3] x [1], precision = [HIGHEST, HIGHEST] : (tensor<2x1x3x5xf32>, tensor<2x5x4xf32>) -> tensor<2x1x3x4xf32> loc("layers.1.self_attn.context")
    %l1_self_attn_context.r = stablehlo.reshape %l1_self_attn_context.dot : (tensor<2x1x3x4xf32>) -> tensor<1x24xf32> loc("layers.1.self_attn.context")
    %l1_self_attn_o_proj.dot = stablehlo.dot_general %l1_self_attn_context.r, %model.layers.1.self_attn.o_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x24xf32>, tensor<10x24xf32>) -> tensor<1x10xf32> loc("layers.1.self_attn.o_proj")
    %l1.add = stablehlo.add %l0.add1, %l1_self_attn_o_proj.dot : tensor<1x10xf32> loc("layers.1")
    %l1_post_attention_layernorm.mul = stablehlo.multiply %l1.add, %l1.add : tensor<1x10xf32> loc("layers.1.post_attention_layernorm")
    %l1_post_attention_layernorm.red = stablehlo.reduce(%l1_post_attention_layernorm.mul init: %c4) applies stablehlo.add across dimensions = [1] : (tensor<1x10xf32>, tensor<f32>) -> tensor<1xf32> loc("layers.1.post_attention_layernorm")
    %l1_post_attention_layernorm.mul1 = stablehlo.multiply %l1_post_attention_layernorm.red, %c5 : tensor<1xf32> loc("layers.1.post_attention_layernorm")
    %l1_post_attention_layernorm.add = stablehlo.add %l1_post_attention_layernorm.mul1, %c6 : tensor<1xf32> loc("layers.1.post_attention_layernorm")
    %l1_post_attention_layernorm.rsqrt = stablehlo.rsqrt %l1_post_attention_layernorm.add : tensor<1xf32> loc("layers.1.post_attention_layernorm")
    %l1_post_attention_layernorm.bc = stablehlo.broadcast_in_dim %l1_post_attention_layernorm.rsqrt, dims = [0] : (tensor<1xf32>) -> tensor<1x10xf32> loc("layers.1.post_attention_layernorm")
    %l1_post_attention_layernorm.mul2 = stablehlo.multiply %l1.add, %l1_post_attention_layernorm.bc : tensor<1x10xf32> loc("layers.1.post_attention_layernorm")
    %l1_post_attention_layernorm.bc1 = stablehlo.broadcast_in_dim %model.layers.1.post_attention_layernorm.weight, dims = [1] : (tensor<10xf32>) -> tensor<1x10xf32> loc("layers.1.post_attention_layernorm")
    %l1_post_attention_layernorm.mul3 = stablehlo.multiply %l1_post_attention_layernorm.mul2, %l1_post_attention_layernorm.bc1 : tensor<1x10xf32> loc("layers.1.post_attention_layernorm")
    %l1_mlp_gate_proj.dot = stablehlo.dot_general %l1_post_attention_layernorm.mul3, %model.layers.1.mlp.gate_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x10xf32>, tensor<14x10xf32>) -> tensor<1x14xf32> loc("layers.1.mlp.gate_proj")
    %l1_mlp_up_proj.dot = stablehlo.dot_general %l1_post_attention_layernorm.mul3, %model.layers.1.mlp.up_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x10xf32>, tensor<14x10xf32>) -> tensor<1x14xf32> loc("layers.1.mlp.up_proj")
    %l1_mlp_act.logistic = stablehlo.logistic %l1_mlp_gate_proj.dot : tensor<1x14xf32> loc("layers.1.mlp.act")
    %l1_mlp_act.mul = stablehlo.multiply %l1_mlp_gate_proj.dot, %l1_mlp_act.logistic : tensor<1x14xf32> loc("layers.1.mlp.act")
    %l1_mlp_act.mul1 = stablehlo.multiply %l1_mlp_act.mul, %l1_mlp_up_proj.dot : tensor<1x14xf32> loc("layers.1.mlp.act")
    %l1_mlp_down_proj.dot = stablehlo.dot_general %l1_mlp_act.mul1, %model.layers.1.mlp.down_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x14xf32>, tensor<10x14xf32>) -> tensor<1x10xf32> loc("layers.1.mlp.down_proj")
    %l1.add1 = stablehlo.add %l1.add, %l1_mlp_down_proj.dot : tensor<1x10xf32> loc("layers.1")
    %norm.mul = stablehlo.multiply %l1.add1, %l1.add1 : tensor<1x10xf32> loc("norm")
    %norm.red = stablehlo.reduce(%norm.mul init: %c4) applies stablehlo.add across dimensions = [1] : (tensor<1x10xf32>, tensor<f32>) -> tensor<1xf32> loc("norm")
    %norm.mul1 = stablehlo.multiply %norm.red, %c5 : tensor<1xf32> loc("norm")
    %norm.add = stablehlo.add %norm.mul1, %c6 : tensor<1xf32> loc("norm")
    %norm.rsqrt = stablehlo.rsqrt %norm.add : tensor<1xf32> loc("norm")
    %norm.bc = stablehlo.broadcast_in_dim %norm.rsqrt, dims = [0] : (tensor<1xf32>) -> tensor<1x10xf32> loc("norm")
    %norm.mul2 = stablehlo.multiply %l1.add1, %norm.bc : tensor<1x10xf32> loc("norm")
    %norm.bc1 = stablehlo.broadcast_in_dim %model.norm.weight, dims = [1] : (tensor<10xf32>) -> tensor<1x10xf32> loc("norm")
    %norm.mul3 = stablehlo.multiply %norm.mul2, %norm.bc1 : tensor<1x10xf32> loc("norm")
    %lm_head.dot = stablehlo.dot_general %norm.mul3, %model.embed_tokens.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x10xf32>, tensor<17x10xf32>) -> tensor<1x17xf32> loc("lm_head")
    %lm_head.r = stablehlo.reshape %lm_head.dot : (tensor<1x17xf32>) -> tensor<17xf32> loc("lm_head")
    func.return %lm_head.r, %l1_self_attn_k_cache.dus, %l1_self_attn_v_cache.dus : tensor<17xf32>, tensor<2x2x5x4xf32>, tensor<2x2x5x4xf32>
  }
}
