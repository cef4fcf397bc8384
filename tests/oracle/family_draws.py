"""Small configs of each dense family, drawn from seed and number alone: what families.py trains.

    FAMILIES[model_type](d) -> the keyword arguments of transformers' config class

d is a Draw. d.turn(values) takes each value once in every len(values) numbers in a row, in an order of their own; d.pick
takes any. A family's function is its switches: `decoder` has what all have that are like Llama, and a family overrides
or adds keys. Every key that a class reads is drawn, unless it changes the initial weights or dropout alone.

Two blocks, width <= 64, rows of SEQ tokens. Epsilons are up to 1e-2, multipliers and caps far from 1, windows shorter than
a row, so that a term that is left out is far outside what rounding does."""
import random

SEQ = 33
KINDS = ("full_attention", "sliding_attention")
# Words of hidden_act: transformers.activations.ACT2CLS without those that are steps or have parameters.
ACTS = ("silu", "gelu", "gelu_pytorch_tanh", "relu", "relu2", "gelu_new", "swish", "quick_gelu", "gelu_fast", "mish", "tanh",
        "sigmoid", "linear", "gelu_python", "gelu_accurate", "leaky_relu", "relu6", "hardswish", "gelu_10", "laplace")


class Draw:
    def __init__(self, family, seed, number):
        self.family, self.seed, self.number, self.n_turns = family, seed, number, 0
        self.r = random.Random(f"{seed}:{family}:{number}")
        self.pick, self.between = self.r.choice, self.r.randint
        self.heads = self.turn((1, 2, 3, 4, 5))
        self.head_width = self.turn((4, 6, 8, 10, 12))
        self.width = self.heads * self.head_width
        self.vocabulary = self.between(26, 53)
        self.window = self.turn((1, SEQ - 1, SEQ, self.between(2, SEQ - 2), self.between(2, 9)))

    def turn(self, values):
        self.n_turns += 1
        block, at = divmod(self.number, len(values))
        order = list(range(len(values)))
        random.Random(f"{self.seed}:{self.family}:{self.n_turns}:{block}").shuffle(order)
        return values[order[at]]

    def switch(self):
        return self.turn((False, True))

    def act(self, usual):
        return self.turn((usual, usual, self.pick(ACTS)))

    def kinds(self):
        """layer_types; None: what the class makes of it."""
        return self.turn((None, list(KINDS), list(KINDS[::-1]), [KINDS[1]] * 2, [KINDS[0]] * 2))

    def rope(self, width, forms=("default", "linear", "llama3", "yarn", "dynamic", "longrope"), share=None, original=None):
        """rope_parameters for heads of this width. share: partial_rotary_factor; original: where it is outside."""
        form = self.turn(tuple(forms) + ("default",))
        n, trained = int(width * (share or 1)), self.pick((8, 16, 24))
        theta = self.pick((100.0, 10000.0, 1e6, 500000))
        out = dict(rope_type=form, rope_theta=theta)
        if share is not None:
            out["partial_rotary_factor"] = share
        if form == "dynamic" and n <= 2 or form in ("longrope", "yarn") and n % 2:  # transformers fails on these
            form = out["rope_type"] = "default"
        if form in ("linear", "dynamic"):
            out["factor"] = self.pick((2.0, 4.0))
        elif form == "llama3":
            out.update(factor=self.pick((4.0, 8.0)), low_freq_factor=self.pick((0.25, 1.0)), high_freq_factor=4.0,
                       original_max_position_embeddings=trained, rope_theta=self.pick((100.0, 500.0)))
        elif form == "yarn":
            out.update(factor=self.pick((2.0, 4.0, 8.0)), original_max_position_embeddings=trained,
                       rope_theta=self.pick((20.0, 100.0, 10000.0)))
            out.update(self.pick((dict(), dict(attention_factor=1.3), dict(mscale=0.7, mscale_all_dim=1.4),
                                  dict(mscale=0.7), dict(mscale=1.0, mscale_all_dim=1.0))))
            out.update(self.pick((dict(), dict(beta_fast=4.0, beta_slow=0.2), dict(beta_fast=1.0, beta_slow=0.1))))
            out.update(self.pick((dict(), dict(truncate=False), dict(truncate=True))))
        elif form == "longrope":
            out.update(original_max_position_embeddings=original or self.pick((16, 32, 33, 40)),
                       short_factor=[1 + self.r.random() for _ in range(n // 2)],
                       long_factor=[2 + 4 * self.r.random() for _ in range(n // 2)])
            out.update(self.pick((dict(), dict(factor=4.0), dict(attention_factor=1.2))))
        return out


def decoder(d, act="hidden_act", usual="silu", head_dim=False, forms=None, share=None):
    """What Llama has without its switches. head_dim: the class has the key; "maybe": it reads it where it is there."""
    apart = d.switch() and head_dim == "maybe" or head_dim is True  # each call of turn() stands in all draws
    width = d.turn((2, 4, 6, 8, 16))
    width = width if apart else d.head_width
    divisors = [n for n in range(1, d.heads + 1) if d.heads % n == 0]
    out = dict(num_hidden_layers=2, num_attention_heads=d.heads, hidden_size=d.width,
               num_key_value_heads=d.turn((1, d.heads, d.pick(divisors))), vocab_size=d.vocabulary,
               intermediate_size=d.turn((d.width + 3, 2 * d.width)), max_position_embeddings=SEQ + d.turn((0, 5, 31)),
               tie_word_embeddings=d.switch(), rms_norm_eps=d.turn((1e-5, 1e-6, 1e-2)), attention_dropout=0.0,
               bos_token_id=0, eos_token_id=1, pad_token_id=d.turn((None, 2)))
    out[act] = d.act(usual)
    out["rope_parameters"] = d.rope(width, **({"forms": forms} if forms else {}), share=share)
    return out | (dict(head_dim=width) if apart else {})


def without(kwargs, *keys):
    return {k: v for k, v in kwargs.items() if k not in keys}


def layer_norms(kwargs, key="layer_norm_eps"):
    """The same with the epsilon under another name."""
    return without(kwargs, "rms_norm_eps") | {key: kwargs["rms_norm_eps"]}


def both(d, width, forms=("default", "linear", "llama3", "yarn")):
    """rope_parameters by kind of block."""
    return {"full_attention": d.rope(width, forms), "sliding_attention": d.rope(width, ("default",))}


# ---- decoders ----

def llama(d):
    return decoder(d, head_dim=True) | dict(attention_bias=d.switch(), mlp_bias=d.switch())


def mistral(d):
    return decoder(d, head_dim=True) | dict(sliding_window=d.turn((None, d.window)))


def qwen2(d):
    out = decoder(d)
    return out | d.turn((dict(), dict(use_sliding_window=True, sliding_window=d.window, max_window_layers=d.between(0, 2)),
                         dict(use_sliding_window=False, sliding_window=d.window)))


def qwen3(d):
    out = decoder(d, head_dim=True) | dict(attention_bias=d.switch())
    return out | d.turn((dict(), dict(use_sliding_window=True, sliding_window=d.window, max_window_layers=d.between(0, 2)),
                         dict(use_sliding_window=False, sliding_window=d.window)))


def gemma(d):
    return decoder(d, usual="gelu_pytorch_tanh", head_dim=True) | dict(attention_bias=d.switch())


def gemma2(d):
    return decoder(d, "hidden_activation", "gelu_pytorch_tanh", True) | dict(
        attention_bias=d.switch(), query_pre_attn_scalar=d.pick((4, 24, 256)), sliding_window=d.window, layer_types=d.kinds(),
        final_logit_softcapping=d.turn((None, 1.0, 30.0)), attn_logit_softcapping=d.turn((None, 0.5, 50.0)))


def gemma3_text(d):
    out = decoder(d, "hidden_activation", "gelu_pytorch_tanh", True)
    return out | dict(
        attention_bias=d.switch(), query_pre_attn_scalar=d.pick((4, 24, 256)), sliding_window=d.window, layer_types=d.kinds(),
        final_logit_softcapping=d.turn((None, 1.0, 30.0)), rope_parameters=both(d, out["head_dim"]),
        attn_logit_softcapping=d.turn((None, None, None, 0.5)))


def gpt2(d):
    return dict(n_layer=2, n_head=d.heads, n_embd=d.width, n_positions=SEQ + d.turn((0, 5)), vocab_size=d.vocabulary,
                activation_function=d.act("gelu_new"), n_inner=d.turn((None, d.width + 3, 2 * d.width)),
                tie_word_embeddings=d.switch(), scale_attn_weights=d.switch(),
                scale_attn_by_inverse_layer_idx=d.switch(), layer_norm_epsilon=d.turn((1e-5, 1e-2)), attn_pdrop=0.0,
                embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=0, eos_token_id=1)


def phi3(d):
    original = d.pick((16, 32, 33, 40))
    out = decoder(d) | dict(resid_pdrop=0.0, embd_pdrop=0.0, sliding_window=d.turn((None, d.window)),
                            original_max_position_embeddings=original)
    share = d.turn((1.0, 0.5, 0.75))
    return out | dict(rope_parameters=d.rope(d.head_width, ("longrope",), share, original))


def phi(d):
    out = decoder(d, usual="gelu_new", share=d.turn((0.5, 1.0)))
    if int(d.head_width * out["rope_parameters"]["partial_rotary_factor"]) % 2:
        out["rope_parameters"]["partial_rotary_factor"] = 1.0  # transformers fails on an odd number of columns
        if out["rope_parameters"]["rope_type"] == "longrope":
            out["rope_parameters"] = dict(rope_type="default", rope_theta=100.0, partial_rotary_factor=1.0)
    return layer_norms(out) | dict(qk_layernorm=d.switch(), resid_pdrop=0.0, embd_pdrop=0.0)


def ministral3(d):
    out = decoder(d, head_dim=True, forms=("yarn", "yarn"))
    if out["rope_parameters"]["rope_type"] == "default":
        out["rope_parameters"]["original_max_position_embeddings"] = 8
    out["rope_parameters"]["llama_4_scaling_beta"] = d.turn((0.1, 0.5, 0))
    return out | dict(sliding_window=d.turn((None, d.window)))


def smollm3(d):
    return decoder(d, head_dim="maybe") | dict(
        attention_bias=d.switch(), mlp_bias=d.switch(), no_rope_layers=d.turn((None, [1, 0], [0, 1], [1, 1])),
        no_rope_layer_interval=d.turn((2, 4)), **d.turn((dict(), dict(use_sliding_window=True, sliding_window=d.window),
                                                         dict(use_sliding_window=False, sliding_window=d.window))))


def olmo(d):
    return without(decoder(d), "rms_norm_eps") | dict(attention_bias=d.switch(), clip_qkv=d.turn((None, 0.7)))


def olmo2(d):
    return decoder(d, head_dim="maybe") | dict(attention_bias=d.switch())


def olmo3(d):
    out = decoder(d, head_dim="maybe")
    return out | dict(attention_bias=d.switch(), sliding_window=d.window, layer_types=d.kinds(),
                      rope_parameters=both(d, out.get("head_dim", d.head_width)))


def multipliers(d):
    return dict(embedding_multiplier=d.turn((1.0, 3.0)), logits_scaling=d.turn((1.0, 4.0)),
                residual_multiplier=d.turn((1.0, 0.3)), attention_multiplier=d.turn((1.0, 0.05)))


def granite(d):
    return decoder(d, head_dim="maybe") | multipliers(d) | dict(attention_bias=d.switch(), mlp_bias=d.switch())


def granite_swa(d):
    out = decoder(d, forms=("default", "linear"))
    theta = out["rope_parameters"]["rope_theta"]
    return out | multipliers(d) | dict(attention_bias=d.switch(), mlp_bias=d.switch(), sliding_window=d.window, layer_types=d.kinds(),
                                       layer_rope_theta=d.turn((None, [theta, 0], [50.0, theta], [0, 0])))


def cohere(d):
    return layer_norms(decoder(d)) | dict(attention_bias=d.switch(), use_qk_norm=d.switch(), logit_scale=d.turn((0.0625, 1.0, 0.7)))


def cohere2(d):
    return layer_norms(decoder(d)) | dict(attention_bias=d.switch(), logit_scale=d.turn((0.0625, 1.0, 0.7)),
                                          sliding_window=d.window, layer_types=d.kinds())


def exaone4(d):
    out, kinds = decoder(d, head_dim="maybe"), d.kinds()
    return out | d.turn((dict(sliding_window=d.window, layer_types=kinds, sliding_window_pattern=d.pick((2, 4))),
                         dict(sliding_window=None, layer_types=[KINDS[0]] * 2)))


def hunyuan_v1_dense(d):
    out = decoder(d, head_dim=True) | dict(attention_bias=d.switch())
    if out["rope_parameters"]["rope_type"] in ("dynamic", "linear") and out["head_dim"] > 2:
        out["rope_parameters"] |= dict(rope_type="dynamic", alpha=d.pick((3.0, 1000.0)))
    return out


def seed_oss(d):
    return decoder(d, head_dim=True) | dict(attention_bias=d.switch(), attention_out_bias=d.switch(), mlp_bias=d.switch(),
                                            residual_dropout=0.0)


def glm(d):
    out = decoder(d, head_dim=True)
    share = d.turn((0.5, 1.0, 0.75))
    return out | dict(attention_bias=d.switch(), rope_parameters=d.rope(out["head_dim"], share=share if out["head_dim"] > 2 else 1.0))


def ernie4_5(d):
    return without(decoder(d, head_dim=True), "attention_dropout") | dict(use_bias=d.switch())


def arcee(d):
    return decoder(d, usual="relu2", head_dim=True) | dict(attention_bias=d.switch(), mlp_bias=d.switch())


def apertus(d):
    return decoder(d, usual="xielu", head_dim="maybe") | dict(attention_bias=d.switch())


def starcoder2(d):
    return layer_norms(decoder(d, usual="gelu_pytorch_tanh"), "norm_epsilon") | dict(
        use_bias=d.switch(), sliding_window=d.turn((None, d.window)), residual_dropout=0.0, embedding_dropout=0.0)


def stablelm(d):
    share = d.turn((0.25, 0.5, 1.0))
    share = share if int(d.head_width * share) % 2 == 0 else 1.0  # transformers fails on an odd number of columns
    return layer_norms(decoder(d, share=share)) | dict(
        use_qkv_bias=d.switch(), qk_layernorm=d.switch(), use_parallel_residual=d.switch(), hidden_dropout=0.0)


def gpt_neox(d):
    out = without(decoder(d, usual="gelu", share=d.turn((0.25, 0.5, 1.0))), "num_key_value_heads", "pad_token_id")
    return layer_norms(out) | dict(attention_bias=d.switch(), use_parallel_residual=d.switch(), hidden_dropout=0.0)


def opt(d):
    return dict(num_hidden_layers=2, num_attention_heads=d.heads, hidden_size=d.width, ffn_dim=d.turn((d.width + 3, 2 * d.width)),
                max_position_embeddings=SEQ + d.turn((0, 5)), vocab_size=d.vocabulary, tie_word_embeddings=d.switch(),
                word_embed_proj_dim=d.turn((d.width, d.width, d.width + 5)), do_layer_norm_before=d.switch(),
                _remove_final_layer_norm=d.turn((False, False, True)), enable_bias=d.turn((True, True, False)),
                layer_norm_elementwise_affine=d.turn((True, True, False)), activation_function=d.act("relu"), dropout=0.0,
                attention_dropout=0.0, layerdrop=0.0, bos_token_id=0, eos_token_id=1, pad_token_id=d.turn((1, 2, None)))


def bloom(d):
    heads = d.turn((1, 2, 3, 4, 5, 6, 7))
    return dict(n_layer=2, n_head=heads, hidden_size=heads * d.turn((4, 6, 9)), vocab_size=d.vocabulary,
                layer_norm_epsilon=d.turn((1e-5, 1e-2)), apply_residual_connection_post_layernorm=d.switch(),
                hidden_dropout=0.0, attention_dropout=0.0, tie_word_embeddings=d.switch(), bos_token_id=0, eos_token_id=1,
                pad_token_id=d.turn((None, 2)))


def nanochat(d):
    return decoder(d, usual="relu2", head_dim="maybe") | dict(attention_bias=d.switch(),
                                                              final_logit_softcapping=d.turn((15.0, 1.0, None)))


def muse_glimmer_text(d):
    out = decoder(d, "hidden_activation", "silu", True, forms=("default", "linear", "llama3", "yarn"))
    kinds, rotated = d.kinds(), d.turn((None, [1e4, 0], [0.0, 5.0], [1, 1]))
    return out | dict(
        attention_bias=d.switch(), sliding_window=d.window, layer_types=kinds, layer_rope_theta=rotated,
        num_hidden_layers=2 if kinds or rotated else 5, final_logit_softcapping=d.turn((20.0, 1.0, 3.0)),
        output_multiplier=d.turn((0.2, 2.5)), qk_scale_factor=d.turn((3.87, 0.5)), post_norm_eps=d.turn((1e-8, 1e-2)))


def helium(d):
    return decoder(d) | dict(head_dim=d.head_width, attention_bias=d.switch(), mlp_bias=d.switch())


# ---- encoders ----

def encoder(d):
    return dict(num_hidden_layers=2, num_attention_heads=d.heads, hidden_size=d.width, intermediate_size=d.turn((d.width + 3, 2 * d.width)),
                vocab_size=d.vocabulary, pad_token_id=d.turn((0, 1, 3)), hidden_act=d.act("gelu"),
                layer_norm_eps=d.turn((1e-12, 1e-5, 1e-2)), type_vocab_size=d.turn((2, 1, 3)), hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0, max_position_embeddings=SEQ + d.turn((0, 5)))


def roberta(d):
    out = encoder(d)
    out["max_position_embeddings"] += out["pad_token_id"] + 1
    return out


def electra(d):
    return encoder(d) | dict(embedding_size=d.turn((d.width, d.width + 6)), tie_word_embeddings=d.turn((True, True, False)))


def distilbert(d):
    return dict(n_layers=2, n_heads=d.heads, dim=d.width, hidden_dim=d.turn((d.width + 3, 2 * d.width)), vocab_size=d.vocabulary,
                max_position_embeddings=SEQ + d.turn((0, 5)), activation=d.act("gelu"), pad_token_id=d.turn((0, 1, 3)),
                sinusoidal_pos_embds=d.switch(), dropout=0.0, attention_dropout=0.0, tie_word_embeddings=d.turn((True, True, False)))


def modernbert(d):
    return dict(num_hidden_layers=2, num_attention_heads=d.heads, hidden_size=d.width, intermediate_size=d.turn((d.width + 3, 2 * d.width)),
                vocab_size=d.vocabulary, max_position_embeddings=SEQ + d.turn((0, 5)), hidden_activation=d.act("gelu"),
                norm_eps=d.turn((1e-5, 1e-2)), norm_bias=d.switch(), attention_bias=d.switch(), mlp_bias=d.switch(),
                decoder_bias=d.switch(), classifier_bias=d.switch(), classifier_activation=d.act("gelu"),
                layer_types=d.kinds(), local_attention=d.turn((2, 5, 10, 64)), tie_word_embeddings=d.turn((True, True, False)),
                rope_parameters=both(d, d.head_width), pad_token_id=d.turn((0, 3)), bos_token_id=2, eos_token_id=3,
                cls_token_id=2, sep_token_id=3, attention_dropout=0.0, embedding_dropout=0.0, mlp_dropout=0.0)


def eurobert(d):
    return decoder(d, head_dim=True) | dict(attention_bias=d.switch(), mlp_bias=d.switch(), mask_token_id=4)


def lfm2(d):
    kinds = ("full_attention", "conv")
    out = without(decoder(d, head_dim="maybe"), "hidden_act", "attention_dropout", "rms_norm_eps")
    out |= d.turn((dict(), dict(layer_types=list(kinds)), dict(layer_types=list(kinds[::-1])), dict(layer_types=[kinds[1]] * 2),
                   dict(full_attn_idxs=[1]), dict(full_attn_idxs=[]), dict(full_attn_idxs=[0, 2])))
    return out | dict(norm_eps=d.turn((1e-5, 1e-6, 1e-2)), conv_bias=d.switch(), conv_L_cache=d.turn((3, 1, 2, 4, 5, 7, 8)),
                      block_auto_adjust_ff_dim=d.turn((True, True, False)), block_multiple_of=d.turn((1, 3, 8)),
                      block_ffn_dim_multiplier=d.turn((1.0, 1.3, 0.7, 2)))


def lfm3(d):
    kinds = ("full_attention", "sliding_attention", "conv")
    pairs = [dict(layer_types=[a, b]) for a in kinds for b in kinds]
    out = without(decoder(d, head_dim=True), "hidden_act", "rms_norm_eps") | d.turn((dict(num_hidden_layers=5), *pairs))
    forms = ("proportional", "default", "linear", "llama3", "yarn")
    out["rope_parameters"] = {kind: d.rope(out["head_dim"], forms) for kind in kinds[:2]}
    for rope in out["rope_parameters"].values():
        if rope["rope_type"] == "proportional":
            rope.update(d.pick((dict(), dict(partial_rotary_factor=d.pick((0.25, 0.5, 0.7, 1.0))))), **d.pick((dict(), dict(factor=3.0))))
    return out | dict(norm_eps=d.turn((1e-5, 1e-6, 1e-2)), conv_bias=d.switch(), conv_L_cache=d.turn((7, 1, 2, 3, 8)),
                      sliding_window=d.window, attention_bias=d.switch(), use_sandwich_norm=d.turn((True, True, False)),
                      use_attention_gate=d.turn((True, True, False)))


def delta(d):
    """Of blocks with the gated delta rule."""
    key_heads = d.turn((1, 2, 3))
    return dict(linear_conv_kernel_dim=d.turn((4, 2, 3, 8)), linear_num_key_heads=key_heads,
                linear_num_value_heads=key_heads * d.turn((1, 2)), linear_key_head_dim=d.turn((4, 8, 5)),
                linear_value_head_dim=d.turn((8, 3, 4)))


def qwen3_5_text(d):
    kinds, share = ("full_attention", "linear_attention"), d.turn((0.25, 0.5, 1.0))
    out = decoder(d, head_dim=True)
    out["hidden_act"] = d.turn(("silu",) * 5 + ("gelu",))
    width = out["head_dim"] = 2 * out["head_dim"]
    share = share if int(width * share) % 2 == 0 else 1.0  # transformers fails on an odd number of columns
    out["rope_parameters"] = d.rope(width, ("default", "linear", "llama3", "yarn"), share=share) | dict(mrope_section=[2, 1, 1])
    out |= d.turn((dict(num_hidden_layers=4), dict(full_attention_interval=2), *(dict(layer_types=[a, b]) for a in kinds for b in kinds)))
    return out | delta(d) | dict(attention_bias=d.switch())


def qwen3_5_moe_text(d):
    out = qwen3_5_text(d)
    out.pop("intermediate_size")
    return out | experts(d) | dict(moe_intermediate_size=d.turn((6, 16, 9)), shared_expert_intermediate_size=d.turn((7, 16)))


def olmo_hybrid(d):
    kinds, rope = ["linear_attention", "full_attention"], d.rope(d.head_width, ("default", "linear", "llama3", "yarn"))
    out = decoder(d)
    out["hidden_act"] = d.turn(("silu",) * 5 + ("gelu",))
    out["rope_parameters"] = d.turn((rope, rope, dict(rope_type="default", rope_theta=None)))
    out |= d.turn((dict(num_hidden_layers=4), dict(num_hidden_layers=5), dict(layer_types=kinds), dict(layer_types=kinds[::-1])))
    own = delta(d) if d.turn((True, True, False)) else dict(linear_conv_kernel_dim=4)
    return out | own | dict(attention_bias=d.switch(), linear_allow_neg_eigval=d.switch())


# ---- mixtures of experts ----

def experts(d, count="num_experts"):
    """From 4 to 64 experts, of which a token has 1 to 8, or all."""
    n = d.turn((4, 8, 5, 64, 16))
    return {count: n, "num_experts_per_tok": min(n, d.turn((2, 1, 4, 8, 3))), "hidden_act": "silu", "output_router_logits": False}


def sparse(d):
    return experts(d) | dict(moe_intermediate_size=d.turn((6, 16, 9)), norm_topk_prob=d.switch(), decoder_sparse_step=d.turn((1, 1, 2)),
                             mlp_only_layers=d.turn(([], [], [0], [1])))


def qwen3_moe(d):
    return decoder(d, head_dim="maybe") | sparse(d) | dict(attention_bias=d.switch()) | d.turn(
        (dict(), dict(use_sliding_window=True, sliding_window=d.window), dict(use_sliding_window=False, sliding_window=d.window)))


def qwen2_moe(d):
    out = decoder(d) | sparse(d) | dict(qkv_bias=d.switch(), shared_expert_intermediate_size=d.turn((7, 16)))
    return out | d.turn((dict(), dict(use_sliding_window=True, sliding_window=d.window, max_window_layers=d.between(0, 2)),
                         dict(use_sliding_window=True, sliding_window=d.window, layer_types=list(KINDS)),
                         dict(use_sliding_window=False, sliding_window=d.window)))


def mixtral(d):
    return decoder(d, head_dim=True) | experts(d, "num_local_experts") | dict(sliding_window=d.turn((None, d.window)))


def olmoe(d):
    return decoder(d) | experts(d) | dict(norm_topk_prob=d.switch(), attention_bias=d.switch())


def sigmoids(d):
    return dict(routed_scaling_factor=d.turn((1.0, 2.5, 0.3)), norm_topk_prob=d.switch(), moe_intermediate_size=d.turn((6, 16, 9)))


def lfm2_moe(d):
    kinds = ("full_attention", "conv")
    out = without(decoder(d, head_dim="maybe"), "hidden_act", "attention_dropout", "rms_norm_eps")
    out |= dict(layer_types=d.turn((list(kinds), list(kinds[::-1]), [kinds[1]] * 2, [kinds[0]] * 2)))
    return out | without(experts(d), "hidden_act") | sigmoids(d) | dict(
        norm_eps=d.turn((1e-5, 1e-6, 1e-2)), conv_bias=d.switch(), conv_L_cache=d.turn((3, 1, 2, 4, 8)),
        num_dense_layers=d.turn((0, 1)), use_expert_bias=d.turn((True, True, False)))


def even(width, share):
    """transformers fails on an odd number of rotated columns, or on none."""
    return share if int(width * share) % 2 == 0 and int(width * share) > 0 else 1.0


def glm4_moe(d):
    out, share = decoder(d, head_dim="maybe"), d.turn((0.5, 1.0, 0.75))
    width = out.get("head_dim", d.head_width)
    n, groups, best = d.turn(((4, 1, 1), (8, 2, 1), (12, 4, 2), (16, 4, 3), (64, 8, 4), (5, 1, 1), (16, 8, 2)))
    return out | sigmoids(d) | dict(
        hidden_act="silu", rope_parameters=d.rope(width, share=even(width, share)), n_routed_experts=n, n_group=groups,
        topk_group=best, num_experts_per_tok=min(n // groups * best, d.turn((2, 1, 4, 8, 3))), n_shared_experts=d.turn((1, 2, 1, 3)),
        first_k_dense_replace=d.turn((0, 1)), attention_bias=d.switch(), use_qk_norm=d.switch(), output_router_logits=False)


def minimax_m2(d):
    out, share = decoder(d, head_dim=True), d.turn((0.5, 1.0, 0.75, None))
    width = out["head_dim"]
    if share is not None:
        out["rope_parameters"] = d.rope(width, share=even(width, share))
    return out | experts(d, "num_local_experts")


FAMILIES = {f.__name__: f for f in (
    llama, mistral, qwen2, qwen3, gemma, gemma2, gemma3_text, gpt2, phi3, phi, ministral3, smollm3, olmo, olmo2, olmo3, granite,
    granite_swa, cohere, cohere2, exaone4, hunyuan_v1_dense, seed_oss, glm, ernie4_5, arcee, apertus, starcoder2, stablelm,
    gpt_neox, opt, bloom, nanochat, helium, modernbert, eurobert, distilbert, electra, roberta, lfm2, lfm3, qwen3_5_text,
    muse_glimmer_text, olmo_hybrid, qwen3_moe, qwen2_moe, mixtral, olmoe, lfm2_moe, glm4_moe, minimax_m2,
    qwen3_5_moe_text)}
FAMILIES |= {"glm4": glm, "bert": encoder, "xlm-roberta": roberta}
ENCODERS = ("bert", "roberta", "xlm-roberta", "distilbert", "electra", "modernbert", "eurobert")
MIXTURES = ("qwen3_moe", "qwen2_moe", "mixtral", "olmoe", "lfm2_moe", "glm4_moe", "minimax_m2", "qwen3_5_moe_text")
