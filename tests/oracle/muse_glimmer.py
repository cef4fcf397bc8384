"""The text model of Muse Glimmer with its head alone, for which transformers has no class: its own MuseGlimmerTextModel, and
the wrapper's head as MuseGlimmerForConditionalGeneration computes it. check_passed.py has the wrapper itself."""
import torch
from transformers import AutoModelForCausalLM, GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.muse_glimmer.configuration_muse_glimmer import MuseGlimmerTextConfig
from transformers.models.muse_glimmer.modeling_muse_glimmer import MuseGlimmerPreTrainedModel, MuseGlimmerTextModel


class MuseGlimmerTextForCausalLM(MuseGlimmerPreTrainedModel, GenerationMixin):
    config_class = MuseGlimmerTextConfig
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config):
        super().__init__(config)
        self.model = MuseGlimmerTextModel(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids=None, **kwargs):
        kwargs.pop("labels", None)
        kwargs.pop("return_dict", None)
        out = self.model(input_ids=input_ids, **kwargs)
        cap = self.config.final_logit_softcapping
        logits = self.lm_head(out.last_hidden_state) * self.config.output_multiplier
        return CausalLMOutputWithPast(logits=cap * torch.tanh(logits / cap))


MuseGlimmerTextForCausalLM.__name__ = MuseGlimmerTextModel.__name__  # what config.json says of it
AutoModelForCausalLM.register(MuseGlimmerTextConfig, MuseGlimmerTextForCausalLM, exist_ok=True)  # else a config of its own is not taken
