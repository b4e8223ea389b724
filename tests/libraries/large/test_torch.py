"""Tensors stand on blocks without a copy, keep them, and let them go."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import dlpack
from torch.utils.data import DataLoader, TensorDataset

import bigmem

InUse = Callable[[], int]
COUNT = 50_000


def numbers(allocator: bigmem.Allocator) -> np.ndarray:
    array = bigmem.empty(COUNT, np.float32, allocator=allocator)
    array[:] = np.arange(COUNT)
    return array


WAYS_IN = {
    "from_numpy": torch.from_numpy,
    "as_tensor": torch.as_tensor,
    "from_dlpack": torch.from_dlpack,
    "utils.dlpack": lambda array: dlpack.from_dlpack(array.__dlpack__()),
    "frombuffer": lambda array: torch.frombuffer(array, dtype=torch.float32),
}
WAYS_OUT = {
    "numpy": lambda tensor: tensor.numpy(),
    "asarray": np.asarray,
    "from_dlpack": np.from_dlpack,
    "utils.dlpack": lambda tensor: torch.from_dlpack(dlpack.to_dlpack(tensor)),
}


@pytest.mark.parametrize("way_in", WAYS_IN)
@pytest.mark.parametrize("way_out", WAYS_OUT)
def test_there_and_back_in_place(
    allocator: bigmem.Allocator, in_use: InUse, way_in: str, way_out: str
) -> None:
    array = numbers(allocator)
    address = array.ctypes.data
    tensor = WAYS_IN[way_in](array)
    assert tensor.data_ptr() == address
    array[0] = 5
    assert tensor[0] == 5
    del array
    assert in_use() == 1
    back = WAYS_OUT[way_out](tensor[10:])
    del tensor
    assert in_use() == 1
    assert (np.asarray(back) == np.arange(10, COUNT)).all()
    assert np.asarray(back).ctypes.data == address + 40
    del back
    assert in_use() == 0


def test_explicit_release_is_refused_while_a_tensor_lives(allocator: bigmem.Allocator) -> None:
    block = allocator.allocate(4000)
    tensor = torch.from_numpy(np.frombuffer(block, np.float32))
    with pytest.raises(bigmem.InvalidRelease):
        block.release()
    del tensor
    block.release()


def test_a_graph_keeps_what_its_backward_pass_needs(
    allocator: bigmem.Allocator, in_use: InUse
) -> None:
    array = numbers(allocator)
    weight = torch.full((COUNT,), 3.0, requires_grad=True)
    loss = (torch.from_numpy(array) * weight).sum()
    del array
    assert in_use() == 1
    loss.backward()
    assert in_use() == 0
    assert weight.grad is not None
    assert (weight.grad.numpy() == np.arange(COUNT)).all()


def test_results_of_torch_are_its_own(allocator: bigmem.Allocator, in_use: InUse) -> None:
    tensor = torch.from_numpy(numbers(allocator))
    results = [tensor + 1, tensor.clone(), tensor.sort(descending=True).values]
    assert allocator.stats().allocations == 1
    del tensor
    assert in_use() == 0
    assert results[0][7] == 8


def test_moving_into_shared_memory_lets_the_block_go(
    allocator: bigmem.Allocator, in_use: InUse
) -> None:
    tensor = torch.from_numpy(numbers(allocator))
    tensor.share_memory_()
    assert in_use() == 0
    assert (tensor.numpy() == np.arange(COUNT)).all()


def test_saving_and_loading(allocator: bigmem.Allocator, in_use: InUse, tmp_path: Path) -> None:
    tensor = torch.from_numpy(numbers(allocator))
    torch.save(tensor, tmp_path / "tensor.pt")
    copies = [torch.load(tmp_path / "tensor.pt"), pickle.loads(pickle.dumps(tensor))]
    assert all(torch.equal(each, tensor) for each in copies)
    del tensor
    assert in_use() == 0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_reads_blocks_in_its_worker_processes(
    allocator: bigmem.Allocator, in_use: InUse, workers: int
) -> None:
    samples = torch.from_numpy(numbers(allocator)).reshape(-1, 50)
    labels = torch.arange(len(samples))
    loader = DataLoader(
        TensorDataset(samples, labels),
        batch_size=64,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
    )
    seen = 0
    for batch, chosen in loader:
        assert torch.equal(batch, samples[chosen])
        seen += len(batch)
    assert seen == len(samples)
    del samples, loader, batch
    assert in_use() == 0


def train_on_numpys_arrays() -> Any:
    random = np.random.default_rng(7)
    inputs = random.standard_normal((2000, 16)).astype(np.float32)
    targets = (inputs @ random.standard_normal(16).astype(np.float32))[:, None]
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(5):
        for begin in range(0, 2000, 500):
            part = slice(begin, begin + 500)
            loss = torch.nn.functional.mse_loss(
                model(torch.from_numpy(inputs[part] * 2)), torch.from_numpy(targets[part])
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    with torch.no_grad():
        return losses, np.from_dlpack(model(torch.from_dlpack(inputs)))


def test_training_gives_the_same_under_the_hook(
    same_under_hook: Callable[[Callable[[], Any]], None],
) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads that share a sum round it one way or another
    try:
        same_under_hook(train_on_numpys_arrays)
    finally:
        torch.set_num_threads(threads)


def test_under_the_hook_torchs_own_tensors_stay_with_torch(
    allocator: bigmem.Allocator, in_use: InUse
) -> None:
    bigmem.install(allocator, min_bytes=1)
    try:
        own = torch.ones(COUNT)
        assert in_use() == 0
        tensor = torch.from_numpy(np.ones(COUNT, np.float32))
        assert in_use() == 1
        view = own.numpy()
        assert (view + 1).sum() == 2 * COUNT  # a temporary, gone again
        assert allocator.stats().allocations > 1
    finally:
        bigmem.uninstall()
    assert in_use() == 1
    assert torch.equal(tensor, own)
    del tensor
    assert in_use() == 0
