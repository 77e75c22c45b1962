"""The networks of deep models, after their papers.

DIN: Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", KDD 2018. A user's
recent items come as a bag of the event. The candidate decides which of them matter.

Field-weighted factorization machine: Pan et al., "Field-weighted Factorization Machines for
Click-Through Rate Prediction in Display Advertising", WWW 2018.

DCN-V2: Wang et al., "DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale
Learning to Rank Systems", WWW 2021. The stacked form, with full matrices. As in all models here the
sum of weights is added to the log-odds: it holds the intercept, and learns rare inputs.

DeepFM: Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction",
IJCAI 2017. The machine and the network share their embeddings.

Wide & Deep: Cheng et al., "Wide & Deep Learning for Recommender Systems", DLRS 2016. The wide part
is the weights of all inputs, including the crossed fields that the spec declares.

The sequence networks are in `sequence`.
"""

import torch
from torch import Tensor, nn

from headrace.learner.models.deep.networks.contract import NetworkBatch, NetworkShape, hidden_layers
from headrace.learner.models.deep.networks.pairwise import sum_of_pairs
from headrace.learner.models.deep.networks.sequence import SequenceNetwork
from headrace.learner.spec.architecture import (
    DCN_V2,
    DEEPFM,
    DIN,
    FIELD_WEIGHTED_FM,
    MODULE,
    SEQUENCE,
    WIDE_AND_DEEP,
)
from headrace.learner.spec.model_spec import ModelSpec

_ATTENTION_WIDTH = 36
"""Width of the activation unit, as in the paper's figure 2."""


class DeepInterestNetwork(nn.Module):
    """The activation unit weighs each item by the candidate; a network takes the weighted sum.

    Weights are not normalized (section 4.3): the strength of an interest counts, too. ReLU replaces
    PReLU and Dice, whose batch statistics do not fit a stream.
    """

    def __init__(self, form: NetworkShape) -> None:
        super().__init__()
        self.target, dimensions = form.target, form.dimensions
        self.attention = nn.Sequential(
            nn.Linear(4 * dimensions, _ATTENTION_WIDTH), nn.ReLU(), nn.Linear(_ATTENTION_WIDTH, 1)
        )
        self.deep = hidden_layers((form.vectors + 1) * dimensions, form.layers)
        self.last = nn.Linear(form.layers[-1], 1)

    def forward(self, batch: NetworkBatch) -> Tensor:
        """Return log-odds, (n,)."""
        shown = batch.vectors[:, self.target : self.target + 1].expand_as(batch.items)
        pairs = torch.cat((batch.items, shown, batch.items - shown, batch.items * shown), dim=2)
        weights = self.attention(pairs).squeeze(2) * batch.present
        interest = (weights.unsqueeze(2) * batch.items).sum(dim=1)  # eq. 3
        everything = torch.cat((batch.vectors.flatten(1), interest), dim=1)
        log_odds: Tensor = batch.wide + self.last(self.deep(everything)).squeeze(1)
        return log_odds


class FieldWeightedFM(nn.Module):
    """y = wide + sum_{i < j} <v_i, v_j> r_ij (eq. 4): one weight a pair of fields.

    Here r_ij is 1 plus what the layer holds, so that the model begins as a factorization machine.
    """

    def __init__(self, form: NetworkShape) -> None:
        super().__init__()
        first, second = torch.triu_indices(form.vectors, form.vectors, offset=1)
        self.places = (first * form.vectors + second,)
        self.strength = nn.Parameter(torch.zeros(len(first)))

    def forward(self, batch: NetworkBatch) -> Tensor:
        """Return log-odds, (n,)."""
        vectors = batch.vectors.shape[1]
        strengths = batch.vectors.new_zeros(vectors * vectors)
        strengths = strengths.index_put(self.places, 1.0 + self.strength).view(vectors, vectors)
        # a coordinate of all fields is a row: one product of matrices sums over i for every j
        rows = batch.vectors.transpose(1, 2).contiguous()
        return batch.wide + ((rows @ strengths) * rows).flatten(1).sum(dim=1)


class DCNv2(nn.Module):
    """Cross layers, then a network on top of them (figure 1a)."""

    def __init__(self, form: NetworkShape) -> None:
        super().__init__()
        width = form.vectors * form.dimensions
        self.cross = nn.ModuleList(nn.Linear(width, width) for _ in range(form.cross_layers))
        self.deep = hidden_layers(width, form.layers)
        self.last = nn.Linear(form.layers[-1], 1)

    def forward(self, batch: NetworkBatch) -> Tensor:
        """Return log-odds, (n,)."""
        x0 = x = batch.vectors.flatten(1)
        for layer in self.cross:
            x = x0 * layer(x) + x  # eq. 1
        log_odds: Tensor = batch.wide + self.last(self.deep(x)).squeeze(1)
        return log_odds


class DeepFM(nn.Module):
    """y = y_FM + y_DNN (eq. 1)."""

    def __init__(self, form: NetworkShape) -> None:
        super().__init__()
        self.deep = hidden_layers(form.vectors * form.dimensions, form.layers)
        self.last = nn.Linear(form.layers[-1], 1)

    def forward(self, batch: NetworkBatch) -> Tensor:
        """Return log-odds, (n,)."""
        pairs, flat = sum_of_pairs(batch.vectors)  # eq. 2
        deep = self.last(self.deep(flat)).squeeze(1)  # eqs. 3 and 4
        log_odds: Tensor = batch.wide + pairs + deep
        return log_odds


class WideAndDeep(nn.Module):
    """P(Y = 1 | x) = sigmoid(w_wide [x, phi(x)] + w_deep a + b) (eq. 3)."""

    def __init__(self, form: NetworkShape) -> None:
        super().__init__()
        self.deep = hidden_layers(form.vectors * form.dimensions, form.layers)
        self.last = nn.Linear(form.layers[-1], 1)

    def forward(self, batch: NetworkBatch) -> Tensor:
        """Return log-odds, (n,)."""
        log_odds: Tensor = batch.wide + self.last(self.deep(batch.vectors.flatten(1))).squeeze(1)
        return log_odds


def make_module(spec: ModelSpec, form: NetworkShape) -> nn.Module:
    """Return the module that a spec declares. Raises UnfitModule."""
    if spec.architecture == MODULE:
        from headrace.learner.models.deep.networks.user_module import make_own

        return make_own(spec.structure.module, form)
    if spec.architecture == SEQUENCE:
        return SequenceNetwork(form, spec.structure)
    networks: dict[str, type[nn.Module]] = {
        WIDE_AND_DEEP: WideAndDeep,
        DEEPFM: DeepFM,
        DCN_V2: DCNv2,
        FIELD_WEIGHTED_FM: FieldWeightedFM,
        DIN: DeepInterestNetwork,
    }
    return networks[spec.architecture](form)
