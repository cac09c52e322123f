module @phi3_prefill_3_logits {
  func.func public @main(
    %model.embed_tokens.weight: tensor<17x24xf32>,
    %model.layers.0.input_layernorm.weight: tensor<24xf32>,
    %model.layers.0.self_attn.qkv_proj.weight: tensor<40x24xf32>,
    %model.layers.0.self_attn.o_proj.weight: tensor<24x24xf32>,
    %model.layers.0.post_attention_layernorm.weight: tensor<24xf32>,
    %model.layers.0.mlp.gate_up_proj.weight: tensor<28x24xf32>,
    %model.layers.0.mlp.down_proj.weight: tensor<24x14xf32>,
    %model.norm.weight: tensor<24xf32>,
    %lm_head.weight: tensor<17x24xf32>,
    %tokens: tensor<3xi32>,
    %length: tensor<i32>
  ) -> (tensor<17xf32>, tensor<1x2x5x4xf32>, tensor<1x2x5x4xf32>) {
    %c = stablehlo.constant dense<0.0> : tensor<1x2x5x4xf32>
    %iota = stablehlo.iota dim = 0 : tensor<3x3xi32>
    %iota1 = stablehlo.iota dim = 1 : tensor<3x3xi32>
    %cmp = stablehlo.compare LE, %iota1, %iota, SIGNED : (tensor<3x3xi32>, tensor<3x3xi32>) -> tensor<3x3xi1>
    %c1 = stablehlo.constant dense<2> : tensor<3x3xi32>
    %sub = stablehlo.subtract %iota, %c1 : tensor<3x3xi32>
    %cmp1 = stablehlo.compare GT, %iota1, %sub, SIGNED : (tensor<3x3xi32>, tensor<3x3xi32>) -> tensor<3x3xi1>
    %and = stablehlo.and %cmp, %cmp1 : tensor<3x3xi1>
    %c2 = stablehlo.constant dense<2> : tensor<i32>
    %sub1 = stablehlo.subtract %length, %c2 : tensor<i32>
    %c3 = stablehlo.constant dense<"0xC2624A40C2624A409CB7F83F9CB7F83F943B46BF943B46BFC2624A40C2624A401618444016184440389C3140389C3140"> : tensor<2x3x2x1xf32>
    %c4 = stablehlo.constant dense<0> : tensor<i32>
    %ds = stablehlo.dynamic_slice %c3, %sub1, %c4, %c4, %c4, sizes = [1, 3, 2, 1] : (tensor<2x3x2x1xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x3x2x1xf32>
    %r = stablehlo.reshape %ds : (tensor<1x3x2x1xf32>) -> tensor<3x2x1xf32>
    %sub2 = stablehlo.subtract %length, %c2 : tensor<i32>
    %c5 = stablehlo.constant dense<"0x0000008000000000DDAB1FC0DDAB1F406E3944C06E3944400000008000000000BF4848BFBF48483FCD0EC2BFCD0EC23F"> : tensor<2x3x2x1xf32>
    %ds1 = stablehlo.dynamic_slice %c5, %sub2, %c4, %c4, %c4, sizes = [1, 3, 2, 1] : (tensor<2x3x2x1xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x3x2x1xf32>
    %r1 = stablehlo.reshape %ds1 : (tensor<1x3x2x1xf32>) -> tensor<3x2x1xf32>
    %embed_tokens.r = stablehlo.reshape %tokens : (tensor<3xi32>) -> tensor<3x1xi32> loc("embed_tokens")
    %embed_tokens.rows = "stablehlo.gather"(%model.embed_tokens.weight, %embed_tokens.r) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 24>}> : (tensor<17x24xf32>, tensor<3x1xi32>) -> tensor<3x24xf32> loc("embed_tokens")
    %l0_input_layernorm.mul = stablehlo.multiply %embed_tokens.rows, %embed_tokens.rows : tensor<3x24xf32> loc("layers.0.input_layernorm")
    %c6 = stablehlo.constant dense<0.0> : tensor<f32>
    %l0_input_layernorm.red = stablehlo.reduce(%l0_input_layernorm.mul init: %c6) applies stablehlo.add across dimensions = [1] : (tensor<3x24xf32>, tensor<f32>) -> tensor<3xf32> loc("layers.0.input_layernorm")
    %c7 = stablehlo.constant dense<0.041666666666666664> : tensor<3xf32>
    %l0_input_layernorm.mul1 = stablehlo.multiply %l0_input_layernorm.red, %c7 : tensor<3xf32> loc("layers.0.input_layernorm")
    %c8 = stablehlo.constant dense<3.0e-05> : tensor<3xf32>
    %l0_input_layernorm.add = stablehlo.add %l0_input_layernorm.mul1, %c8 : tensor<3xf32> loc("layers.0.input_layernorm")
    %l0_input_layernorm.rsqrt = stablehlo.rsqrt %l0_input_layernorm.add : tensor<3xf32> loc("layers.0.input_layernorm")
    %l0_input_layernorm.bc = stablehlo.broadcast_in_dim %l0_input_layernorm.rsqrt, dims = [0] : (tensor<3xf32>) -> tensor<3x24xf32> loc("layers.0.input_layernorm")
    %l0_input_layernorm.mul2 = stablehlo.multiply %embed_tokens.rows, %l0_input_layernorm.bc : tensor<3x24xf32> loc("layers.0.input_layernorm")
    %l0_input_layernorm.bc1 = stablehlo.broadcast_in_dim %model.layers.0.input_layernorm.weight, dims = [1] : (tensor<24xf32>) -> tensor<3x24xf32> loc("layers.0.input_layernorm")
    %l0_input_layernorm.mul3 = stablehlo.multiply %l0_input_layernorm.mul2, %l0_input_layernorm.bc1 : tensor<3x24xf32> loc("layers.0.input_layernorm")
    %l0_self_attn_qkv_proj.dot = stablehlo.dot_general %l0_input_layernorm.mul3, %model.layers.0.self_attn.qkv_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<3x24xf32>, tensor<40x24xf32>) -> tensor<3x40xf32> loc("layers.0.self_attn.qkv_proj")
    %l0_self_attn_qkv_proj.r = stablehlo.reshape %l0_self_attn_qkv_proj.dot : (tensor<3x40xf32>) -> tensor<3x10x4xf32> loc("layers.0.self_attn.qkv_proj")
    %l0_self_attn_qkv_proj.sl = stablehlo.slice %l0_self_attn_qkv_proj.r [0:3, 0:6, 0:4] : (tensor<3x10x4xf32>) -> tensor<3x6x4xf32> loc("layers.0.self_attn.qkv_proj")
    %l0_self_attn_qkv_proj.sl1 = stablehlo.slice %l0_self_attn_qkv_proj.r [0:3, 6:8, 0:4] : (tensor<3x10x4xf32>) -> tensor<3x2x4xf32> loc("layers.0.self_attn.qkv_proj")
    %l0_self_attn_qkv_proj.sl2 = stablehlo.slice %l0_self_attn_qkv_proj.r [0:3, 8:10, 0:4] : (tensor<3x10x4xf32>) -> tensor<3x2x4xf32> loc("layers.0.self_attn.qkv_proj")
    %l0_self_attn_q_rope.sl = stablehlo.slice %l0_self_attn_qkv_proj.sl [0:3, 0:6, 0:2] : (tensor<3x6x4xf32>) -> tensor<3x6x2xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.r = stablehlo.reshape %l0_self_attn_q_rope.sl : (tensor<3x6x2xf32>) -> tensor<3x6x2x1xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.bc = stablehlo.broadcast_in_dim %r, dims = [0, 2, 3] : (tensor<3x2x1xf32>) -> tensor<3x6x2x1xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.bc1 = stablehlo.broadcast_in_dim %r1, dims = [0, 2, 3] : (tensor<3x2x1xf32>) -> tensor<3x6x2x1xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.rev = stablehlo.reverse %l0_self_attn_q_rope.r, dims = [2] : tensor<3x6x2x1xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.mul = stablehlo.multiply %l0_self_attn_q_rope.r, %l0_self_attn_q_rope.bc : tensor<3x6x2x1xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.mul1 = stablehlo.multiply %l0_self_attn_q_rope.rev, %l0_self_attn_q_rope.bc1 : tensor<3x6x2x1xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.add = stablehlo.add %l0_self_attn_q_rope.mul, %l0_self_attn_q_rope.mul1 : tensor<3x6x2x1xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.r1 = stablehlo.reshape %l0_self_attn_q_rope.add : (tensor<3x6x2x1xf32>) -> tensor<3x6x2xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.sl1 = stablehlo.slice %l0_self_attn_qkv_proj.sl [0:3, 0:6, 2:4] : (tensor<3x6x4xf32>) -> tensor<3x6x2xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_q_rope.cat = stablehlo.concatenate %l0_self_attn_q_rope.r1, %l0_self_attn_q_rope.sl1, dim = 2 : (tensor<3x6x2xf32>, tensor<3x6x2xf32>) -> tensor<3x6x4xf32> loc("layers.0.self_attn.q_rope")
    %l0_self_attn_k_rope.sl = stablehlo.slice %l0_self_attn_qkv_proj.sl1 [0:3, 0:2, 0:2] : (tensor<3x2x4xf32>) -> tensor<3x2x2xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.r = stablehlo.reshape %l0_self_attn_k_rope.sl : (tensor<3x2x2xf32>) -> tensor<3x2x2x1xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.bc = stablehlo.broadcast_in_dim %r, dims = [0, 2, 3] : (tensor<3x2x1xf32>) -> tensor<3x2x2x1xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.bc1 = stablehlo.broadcast_in_dim %r1, dims = [0, 2, 3] : (tensor<3x2x1xf32>) -> tensor<3x2x2x1xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.rev = stablehlo.reverse %l0_self_attn_k_rope.r, dims = [2] : tensor<3x2x2x1xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.mul = stablehlo.multiply %l0_self_attn_k_rope.r, %l0_self_attn_k_rope.bc : tensor<3x2x2x1xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.mul1 = stablehlo.multiply %l0_self_attn_k_rope.rev, %l0_self_attn_k_rope.bc1 : tensor<3x2x2x1xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.add = stablehlo.add %l0_self_attn_k_rope.mul, %l0_self_attn_k_rope.mul1 : tensor<3x2x2x1xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.r1 = stablehlo.reshape %l0_self_attn_k_rope.add : (tensor<3x2x2x1xf32>) -> tensor<3x2x2xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.sl1 = stablehlo.slice %l0_self_attn_qkv_proj.sl1 [0:3, 0:2, 2:4] : (tensor<3x2x4xf32>) -> tensor<3x2x2xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_rope.cat = stablehlo.concatenate %l0_self_attn_k_rope.r1, %l0_self_attn_k_rope.sl1, dim = 2 : (tensor<3x2x2xf32>, tensor<3x2x2xf32>) -> tensor<3x2x4xf32> loc("layers.0.self_attn.k_rope")
    %l0_self_attn_k_cache.t = stablehlo.transpose %l0_self_attn_k_rope.cat, dims = [1, 0, 2] : (tensor<3x2x4xf32>) -> tensor<2x3x4xf32> loc("layers.0.self_attn.k_cache")
    %l0_self_attn_k_cache.r = stablehlo.reshape %l0_self_attn_k_cache.t : (tensor<2x3x4xf32>) -> tensor<1x2x3x4xf32> loc("layers.0.self_attn.k_cache")
    %l0_self_attn_k_cache.dus = stablehlo.dynamic_update_slice %c, %l0_self_attn_k_cache.r, %c4, %c4, %c4, %c4 : (tensor<1x2x5x4xf32>, tensor<1x2x3x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x5x4xf32> loc("layers.0.self_attn.k_cache")
    %l0_self_attn_v_cache.t = stablehlo.transpose %l0_self_attn_qkv_proj.sl2, dims = [1, 0, 2] : (tensor<3x2x4xf32>) -> tensor<2x3x4xf32> loc("layers.0.self_attn.v_cache")
    %l0_self_attn_v_cache.r = stablehlo.reshape %l0_self_attn_v_cache.t : (tensor<2x3x4xf32>) -> tensor<1x2x3x4xf32> loc("layers.0.self_attn.v_cache")
    %l0_self_attn_v_cache.dus = stablehlo.dynamic_update_slice %c, %l0_self_attn_v_cache.r, %c4, %c4, %c4, %c4 : (tensor<1x2x5x4xf32>, tensor<1x2x3x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x5x4xf32> loc("layers.0.self_attn.v_cache")
    %l0_self_attn_scores.r = stablehlo.reshape %l0_self_attn_q_rope.cat : (tensor<3x6x4xf32>) -> tensor<3x2x3x4xf32> loc("layers.0.self_attn.scores")
    %l0_self_attn_scores.dot = stablehlo.dot_general %l0_self_attn_scores.r, %l0_self_attn_k_cache.t, batching_dims = [1] x [0], contracting_dims = [3] x [2], precision = [HIGHEST, HIGHEST] : (tensor<3x2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x3x3xf32> loc("layers.0.self_attn.scores")
    %c9 = stablehlo.constant dense<0.5> : tensor<2x3x3x3xf32>
    %l0_self_attn_scores.mul = stablehlo.multiply %l0_self_attn_scores.dot, %c9 : tensor<2x3x3x3xf32> loc("layers.0.self_attn.scores")
    %l0_self_attn_scores.bc = stablehlo.broadcast_in_dim %and, dims = [1, 3] : (tensor<3x3xi1>) -> tensor<2x3x3x3xi1> loc("layers.0.self_attn.scores")
    %c10 = stablehlo.constant dense<0xFF800000> : tensor<2x3x3x3xf32>
    %l0_self_attn_scores.sel = stablehlo.select %l0_self_attn_scores.bc, %l0_self_attn_scores.mul, %c10 : tensor<2x3x3x3xi1>, tensor<2x3x3x3xf32> loc("layers.0.self_attn.scores")
    %c11 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %l0_self_attn_probs.red = stablehlo.reduce(%l0_self_attn_scores.sel init: %c11) applies stablehlo.maximum across dimensions = [3] : (tensor<2x3x3x3xf32>, tensor<f32>) -> tensor<2x3x3xf32> loc("layers.0.self_attn.probs")
    %l0_self_attn_probs.bc = stablehlo.broadcast_in_dim %l0_self_attn_probs.red, dims = [0, 1, 2] : (tensor<2x3x3xf32>) -> tensor<2x3x3x3xf32> loc("layers.0.self_attn.probs")
    %l0_self_attn_probs.sub = stablehlo.subtract %l0_self_attn_scores.sel, %l0_self_attn_probs.bc : tensor<2x3x3x3xf32> loc("layers.0.self_attn.probs")
    %l0_self_attn_probs.exponential = stablehlo.exponential %l0_self_attn_probs.sub : tensor<2x3x3x3xf32> loc("layers.0.self_attn.probs")
    %l0_self_attn_probs.red1 = stablehlo.reduce(%l0_self_attn_probs.exponential init: %c6) applies stablehlo.add across dimensions = [3] : (tensor<2x3x3x3xf32>, tensor<f32>) -> tensor<2x3x3xf32> loc("layers.0.self_attn.probs")
    %l0_self_attn_probs.bc1 = stablehlo.broadcast_in_dim %l0_self_attn_probs.red1, dims = [0, 1, 2] : (tensor<2x3x3xf32>) -> tensor<2x3x3x3xf32> loc("layers.0.self_attn.probs")
    %l0_self_attn_probs.div = stablehlo.divide %l0_self_attn_probs.exponential, %l0_self_attn_probs.bc1 : tensor<2x3x3x3xf32> loc("layers.0.self_attn.probs")
    %l0_self_attn_context.dot = stablehlo.dot_general %l0_self_attn_probs.div, %l0_self_attn_v_cache.t, batching_dims = [0] x [0], contracting_dims = [3] x [1], precision = [HIGHEST, HIGHEST] : (tensor<2x3x3x3xf32>, tensor<2x3x4xf32>) -> tensor<2x3x3x4xf32> loc("layers.0.self_attn.context")
    %l0_self_attn_context.t = stablehlo.transpose %l0_self_attn_context.dot, dims = [1, 0, 2, 3] : (tensor<2x3x3x4xf32>) -> tensor<3x2x3x4xf32> loc("layers.0.self_attn.context")
    %l0_self_attn_context.r = stablehlo.reshape %l0_self_attn_context.t : (tensor<3x2x3x4xf32>) -> tensor<3x24xf32> loc("layers.0.self_attn.context")
    %l0_self_attn_o_proj.dot = stablehlo.dot_general %l0_self_attn_context.r, %model.layers.0.self_attn.o_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<3x24xf32>, tensor<24x24xf32>) -> tensor<3x24xf32> loc("layers.0.self_attn.o_proj")
    %l0.add = stablehlo.add %embed_tokens.rows, %l0_self_attn_o_proj.dot : tensor<3x24xf32> loc("layers.0")
    %l0_post_attention_layernorm.mul = stablehlo.multiply %l0.add, %l0.add : tensor<3x24xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.red = stablehlo.reduce(%l0_post_attention_layernorm.mul init: %c6) applies stablehlo.add across dimensions = [1] : (tensor<3x24xf32>, tensor<f32>) -> tensor<3xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.mul1 = stablehlo.multiply %l0_post_attention_layernorm.red, %c7 : tensor<3xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.add = stablehlo.add %l0_post_attention_layernorm.mul1, %c8 : tensor<3xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.rsqrt = stablehlo.rsqrt %l0_post_attention_layernorm.add : tensor<3xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.bc = stablehlo.broadcast_in_dim %l0_post_attention_layernorm.rsqrt, dims = [0] : (tensor<3xf32>) -> tensor<3x24xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.mul2 = stablehlo.multiply %l0.add, %l0_post_attention_layernorm.bc : tensor<3x24xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.bc1 = stablehlo.broadcast_in_dim %model.layers.0.post_attention_layernorm.weight, dims = [1] : (tensor<24xf32>) -> tensor<3x24xf32> loc("layers.0.post_attention_layernorm")
    %l0_post_attention_layernorm.mul3 = stablehlo.multiply %l0_post_attention_layernorm.mul2, %l0_post_attention_layernorm.bc1 : tensor<3x24xf32> loc("layers.0.post_attention_layernorm")
    %l0_mlp_gate_up_proj.dot = stablehlo.dot_general %l0_post_attention_layernorm.mul3, %model.layers.0.mlp.gate_up_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<3x24xf32>, tensor<28x24xf32>) -> tensor<3x28xf32> loc("layers.0.mlp.gate_up_proj")
    %l0_mlp_act.sl = stablehlo.slice %l0_mlp_gate_up_proj.dot [0:3, 0:14] : (tensor<3x28xf32>) -> tensor<3x14xf32> loc("layers.0.mlp.act")
    %l0_mlp_act.sl1 = stablehlo.slice %l0_mlp_gate_up_proj.dot [0:3, 14:28] : (tensor<3x28xf32>) -> tensor<3x14xf32> loc("layers.0.mlp.act")
    %l0_mlp_act.logistic = stablehlo.logistic %l0_mlp_act.sl : tensor<3x14xf32> loc("layers.0.mlp.act")
    %l0_mlp_act.mul = stablehlo.multiply %l0_mlp_act.sl, %l0_mlp_act.logistic : tensor<3x14xf32> loc("layers.0.mlp.act")
    %l0_mlp_act.mul1 = stablehlo.multiply %l0_mlp_act.mul, %l0_mlp_act.sl1 : tensor<3x14xf32> loc("layers.0.mlp.act")
    %l0_mlp_down_proj.dot = stablehlo.dot_general %l0_mlp_act.mul1, %model.layers.0.mlp.down_proj.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<3x14xf32>, tensor<24x14xf32>) -> tensor<3x24xf32> loc("layers.0.mlp.down_proj")
    %l0.add1 = stablehlo.add %l0.add, %l0_mlp_down_proj.dot : tensor<3x24xf32> loc("layers.0")
    %c12 = stablehlo.constant dense<1> : tensor<i32>
    %sub3 = stablehlo.subtract %length, %c12 : tensor<i32>
    %ds2 = stablehlo.dynamic_slice %l0.add1, %sub3, %c4, sizes = [1, 24] : (tensor<3x24xf32>, tensor<i32>, tensor<i32>) -> tensor<1x24xf32>
    %norm.mul = stablehlo.multiply %ds2, %ds2 : tensor<1x24xf32> loc("norm")
    %norm.red = stablehlo.reduce(%norm.mul init: %c6) applies stablehlo.add across dimensions = [1] : (tensor<1x24xf32>, tensor<f32>) -> tensor<1xf32> loc("norm")
    %c13 = stablehlo.constant dense<0.041666666666666664> : tensor<1xf32>
    %norm.mul1 = stablehlo.multiply %norm.red, %c13 : tensor<1xf32> loc("norm")
    %c14 = stablehlo.constant dense<3.0e-05> : tensor<1xf32>
    %norm.add = stablehlo.add %norm.mul1, %c14 : tensor<1xf32> loc("norm")
    %norm.rsqrt = stablehlo.rsqrt %norm.add : tensor<1xf32> loc("norm")
    %norm.bc = stablehlo.broadcast_in_dim %norm.rsqrt, dims = [0] : (tensor<1xf32>) -> tensor<1x24xf32> loc("norm")
    %norm.mul2 = stablehlo.multiply %ds2, %norm.bc : tensor<1x24xf32> loc("norm")
    %norm.bc1 = stablehlo.broadcast_in_dim %model.norm.weight, dims = [1] : (tensor<24xf32>) -> tensor<1x24xf32> loc("norm")
    %norm.mul3 = stablehlo.multiply %norm.mul2, %norm.bc1 : tensor<1x24xf32> loc("norm")
    %lm_head.dot = stablehlo.dot_general %norm.mul3, %lm_head.weight, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x24xf32>, tensor<17x24xf32>) -> tensor<1x17xf32> loc("lm_head")
    %lm_head.r = stablehlo.reshape %lm_head.dot : (tensor<1x17xf32>) -> tensor<17xf32> loc("lm_head")
    func.return %lm_head.r, %l0_self_attn_k_cache.dus, %l0_self_attn_v_cache.dus : tensor<17xf32>, tensor<1x2x5x4xf32>, tensor<1x2x5x4xf32>
  }
}
