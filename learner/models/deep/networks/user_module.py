"""Loads a user's torch module by name, and tests it before anything is learned.

A name is searched where Python searches, and last in the working directory: a console script would
not search there, and no installed package is hidden by a file there.

Faults that would show in the middle of a stream are tested here: batches of one example, examples
without recent items, an answer that depends on the other examples of the batch. A server asks for
candidates in other batches than a learner does, so such an answer would differ there. An answer
that depends on random numbers of the constructor outside parameters would differ, too: a server
makes an instance of its own, and receives only parameters.
"""

import copy
import importlib
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from headrace.learner.errors import UnfitModule
from headrace.learner.models.deep.networks.contract import NetworkBatch, NetworkShape
from headrace.runtime.counted_nouns import counted

_Returned = TypeVar("_Returned")

_ITEMS = (2, 0, 1)
"""Recent items of each example of the larger trial batch."""
_CLOSE = 1e-4
"""Log-odds that differ by less count as equal: floats are summed in another order."""
_DRAWS = 16
"""Draws of parameters in search of an answer below 0 or above 1. Log-odds take either sign, so a
module is wrongly refused by chance once in 2 ** 16."""
_FAR = 30.0
"""Log-odds of nearly 0 and nearly 1."""


def make_own(name: str, form: NetworkShape) -> nn.Module:
    """Return the module `package.file:Class`. Raises UnfitModule."""
    found = _done(name, "a class that can be imported", _find, name)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise UnfitModule(name, "a class derived from torch.nn.Module", repr(found))
    taking = f"a constructor that takes {form}"
    module, again = (_done(name, taking, found, form) for _ in range(2))
    check_module(name, module, again, form)
    return module


def check_module(name: str, module: nn.Module, again: nn.Module, form: NetworkShape) -> None:
    """Raise UnfitModule if the module is not what a deep model can train and serve.

    again: another instance of the module, with other random numbers.
    """
    # a module whose constructor does not call its base has no attributes yet
    _done(name, "a constructor that calls super().__init__()", list, module.modules())
    buffers = [each for each, _ in module.named_buffers()]
    if buffers:
        expected = "no buffers, which would never reach a server (batch norm has some)"
        raise UnfitModule(name, expected, ", ".join(buffers))
    for each, parameter in module.named_parameters():
        if parameter.dtype != torch.float32:
            raise UnfitModule(name, "parameters of torch.float32", f"{each} of {parameter.dtype}")
    if any(isinstance(each, nn.modules.dropout._DropoutNd) for each in module.modules()):  # noqa: SLF001
        raise UnfitModule(name, "no dropout: an example is learned once", "a dropout layer")
    # a module that remembers its last batch must not remember a trial
    tried, twin = (
        _done(name, "a module that copy.deepcopy copies", copy.deepcopy, each)
        for each in (module, again)
    )
    for items, only in ((_ITEMS, None), ((0, 0), None), *((_ITEMS, k) for k in range(len(_ITEMS)))):
        _check_answer(name, tried, _trial(form, items, only))
    dice = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in tried.parameters():  # a layer that starts with zeros hides its effect
            parameter.add_(torch.randn(parameter.shape, generator=dice), alpha=0.1)
        _check_company(name, tried, form)
        _check_twin(name, tried, twin, form)
        _check_reach(name, tried, form)


def _find(name: str) -> object:
    """Import a name. Raises any error of the user's file."""
    if "" not in sys.path:
        sys.path.append("")
    where, _, wanted = name.partition(":")
    module = importlib.import_module(where)
    if not hasattr(module, wanted):
        raise AttributeError(f"no {wanted!r} in {getattr(module, '__file__', where)}")
    return getattr(module, wanted)


def _done(name: str, expected: str, do: Callable[..., _Returned], *given: object) -> _Returned:
    """Call the user's code. Raises UnfitModule for every error in it."""
    try:
        return do(*given)
    except (Exception, SystemExit) as error:
        # user code: it may even try to end the process
        kind = do if isinstance(do, type) else type(do)
        found = repr(error) + _place(name, kind, error)
        raise UnfitModule(name, expected, found) from error


def _place(name: str, kind: type, error: BaseException) -> str:
    """Return the place of an error: the innermost line of the user's own package.

    kind: the user's class, or any other.
    """
    where = name.partition(":")[0]
    if isinstance(error, ModuleNotFoundError) and f"{where}.".startswith(f"{error.name}."):
        return f" on the import path and in the working directory, {Path.cwd()}"
    if isinstance(error, SyntaxError) and error.filename:
        return f" at {error.filename}:{error.lineno}"
    theirs = {
        each.partition(".")[0] for each in (where, *(base.__module__ for base in kind.__mro__))
    }
    theirs -= {"torch", "builtins"}
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if package in theirs and frame.f_globals is not globals():
            place = f" at {frame.f_code.co_filename}:{line}"
    return place


def _check_company(name: str, module: nn.Module, form: NetworkShape) -> None:
    """Raise UnfitModule if an example's answer depends on the others of its batch."""
    together = _ask(name, module, _trial(form, _ITEMS))
    for place, items in enumerate(_ITEMS):
        alone = _ask(name, module, _trial(form, _ITEMS, place))[0]
        if abs(alone - together[place]) > _CLOSE * (1.0 + abs(alone)):
            expected = "the same log-odds for an example alone and in a batch with other examples"
            found = (
                f"{alone:.6g} and {together[place]:.6g}, with {counted(items, 'item')} of its own"
            )
            raise UnfitModule(name, expected, found)


def _check_twin(name: str, module: nn.Module, twin: nn.Module, form: NetworkShape) -> None:
    """Raise UnfitModule if two instances with the same parameters answer differently.

    Changes the parameters of `twin`.
    """
    one, other = (
        [(each, tuple(parameter.shape)) for each, parameter in each_module.named_parameters()]
        for each_module in (module, twin)
    )
    if one != other:
        first, second = (sorted(set(a) - set(b))[:1] for a, b in ((one, other), (other, one)))
        expected = "parameters of the same names and shapes in every instance"
        raise UnfitModule(name, expected, f"{first} and {second}")
    for parameter, value in zip(twin.parameters(), module.parameters(), strict=True):
        parameter.copy_(value)
    for scale in (1.0, 10.0):
        batch = _trial(form, _ITEMS, scale=scale)
        answer, another = (_ask(name, each, batch) for each in (module, twin))
        differ = (answer - another).abs() > _CLOSE * (1.0 + answer.abs())
        if bool(differ.any()):
            expected = (
                "the same log-odds from every instance with the same parameters: random numbers "
                "of the constructor must be parameters, or drawn with a fixed seed"
            )
            found = f"{answer[differ][0]:.6g} and {another[differ][0]:.6g}"
            raise UnfitModule(name, expected, found)


def _check_reach(name: str, module: nn.Module, form: NetworkShape) -> None:
    """Raise UnfitModule if all answers are within [0, 1]. Changes parameters."""
    dice = torch.Generator().manual_seed(2)
    for draw in range(_DRAWS):
        answer = _ask(name, module, _trial(form, _ITEMS, wide=_FAR, scale=1.0 + draw))
        within = (answer >= 0.0) & (answer <= 1.0 + _CLOSE)
        if not bool(within.all()):
            return
        for parameter in module.parameters():
            parameter.normal_(generator=dice)
    expected = "log-odds, which may be any number; headrace applies the sigmoid itself"
    found = f"answers from 0 to 1 alone, of {_DRAWS} draws of its parameters: probabilities?"
    raise UnfitModule(name, expected, found)


def _trial(
    form: NetworkShape,
    items: tuple[int, ...],
    only: int | None = None,
    *,
    wide: float = 0.1,
    scale: float = 1.0,
) -> NetworkBatch:
    """Return a batch of examples with these numbers of items, or only one of these examples.

    wide: the largest of their sums of weights. scale: of their vectors.
    """
    chosen = slice(None) if only is None else slice(only, only + 1)
    longest = max(items[chosen])
    count, present = len(items), torch.arange(max(items)) < torch.tensor(items).unsqueeze(1)
    size = form.vectors * form.dimensions
    vectors = scale * torch.linspace(-0.2, 0.3, count * size).reshape(count, -1, form.dimensions)
    listed = scale * torch.linspace(0.3, -0.2, count * max(items) * form.dimensions)
    listed = listed.reshape(count, -1, form.dimensions) if max(items) else vectors[:, :0]
    whole = NetworkBatch(
        torch.linspace(-wide, wide, count), vectors, listed * present.unsqueeze(2), present
    )
    return NetworkBatch(
        whole.wide[chosen].requires_grad_(),
        whole.vectors[chosen].requires_grad_(),
        whole.items[chosen, :longest].requires_grad_(),
        whole.present[chosen, :longest],
    )


def _ask(name: str, module: nn.Module, batch: NetworkBatch) -> Any:
    """Return a module's answer; a user's module may return anything."""
    count, longest = batch.present.shape
    trial = f"a Batch of {counted(count, 'example')}, up to {counted(longest, 'item')} each"
    return _done(name, f"a module that can be called with {trial}", module, batch)


def _check_answer(name: str, module: nn.Module, batch: NetworkBatch) -> None:
    """Raise UnfitModule unless the answer to a batch is log-odds with gradients."""
    count, longest = batch.present.shape
    answer = _ask(name, module, batch)
    if not isinstance(answer, Tensor) or answer.shape != (count,):
        found = tuple(answer.shape) if isinstance(answer, Tensor) else repr(answer)
        raise UnfitModule(name, f"log-odds of shape ({count},)", str(found))
    if answer.dtype != torch.float32:
        raise UnfitModule(name, "log-odds of torch.float32", str(answer.dtype))
    if not bool(torch.isfinite(answer).all()):
        trial = f"a Batch of {counted(count, 'example')}, up to {counted(longest, 'item')} each"
        raise UnfitModule(name, f"finite log-odds of {trial}", str(answer.tolist()))
    leaves = [batch.wide, batch.vectors, batch.items, *module.parameters()]
    expected = "log-odds that have a gradient by inputs and parameters"
    _done(name, expected, lambda: torch.autograd.grad(answer.sum(), leaves, allow_unused=True))
    known = {id(each) for each in leaves}
    for leaf in _leaves(answer):
        if id(leaf) not in known:
            expected = "parameters (layers in a plain list are not registered: use nn.ModuleList)"
            found = f"a tensor of shape {tuple(leaf.shape)} with a gradient that is not a parameter"
            raise UnfitModule(name, expected, found)


def _leaves(answer: Tensor) -> Iterable[Tensor]:
    """Yield the tensors that an answer has a gradient by."""
    seen: set[Any] = set()
    left: list[Any] = [answer.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name().endswith("AccumulateGrad"):
            yield node.variable
        left += [each for each, _ in node.next_functions]
