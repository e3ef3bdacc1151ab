"""The paper's hardware and models, and what its figures say: data, with the sources.

Nothing here knows a server. Times that follow from these constants are of a request that
is alone on the device, as in Figure 5 (batch size 1).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvflow_server.emulated.costs import Costs

__all__ = [
    "CROWDED",
    "TESTBEDS",
    "Crowd",
    "Crowded",
    "Device",
    "Mix",
    "Model",
    "Paper",
    "Testbed",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU. What is achieved is an estimate, the rest from data sheets."""

    name: str
    peak_flops: float
    """Dense half precision with 32-bit accumulation, per second."""
    compute_share: float
    """Of the peak that a long prefill reaches; an estimate."""
    memory_bytes_s: float
    memory_share: float
    """Of the memory's bandwidth that a decode step reaches; an estimate."""
    bus_bytes_s: float
    """Host to device, each way, as the paper states it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A dense transformer in 16-bit weights and KV; sizes from its published config."""

    name: str
    layers: int
    hidden: int
    body_parameters: float
    """All but the embedding and the output head, which a prefill passes once or never."""
    head_parameters: float
    kv_bytes: int
    """Per token: 2 (K, V) x layers x KV heads x head size x 2 bytes."""
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int


@dataclass(frozen=True, slots=True)
class Mix:
    """Tokens of one call: fixed prompt, what follows it, what is generated."""

    fixed: int
    dynamic: int
    output: int

    def __str__(self) -> str:
        return f"{self.fixed}/{self.dynamic}/{self.output}"


@dataclass(frozen=True, slots=True)
class Paper:
    """Speed-ups over recomputation (SGLang, GPU memory only), as printed."""

    hicache: float
    kvflow: float

    @property
    def over_hicache(self) -> float:
        return self.kvflow / self.hicache


@dataclass(frozen=True, slots=True)
class Crowd:
    """So many workflows at the same time, each with ten prompts of its own."""

    mix: Mix
    concurrency: int

    def __str__(self) -> str:
        return f"{self.mix.fixed}x{self.concurrency}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Testbed:
    """A device, a model, and the mixes that the paper ran on them."""

    __test__ = False  # not a test class, whatever pytest thinks of its name

    name: str
    device: Device
    model: Model
    pool_tokens: int
    """Of the device's KV pool: about 0.9 of ten prompts of 4096 tokens, 0.45 of 8192
    (PAPER.md, estimated from memory left beside the weights)."""
    fig5: dict[Mix, Paper]

    def prefill_s(self, tokens: int) -> float:
        """Of a prompt from its first token on."""
        return self.costs.prefill_seconds([(0, tokens)])

    def load_s(self, tokens: int) -> float:
        return tokens * self.model.kv_bytes / self.device.bus_bytes_s

    def hit_s(self, mix: Mix) -> float:
        """Of a call whose fixed prompt is on the device."""
        return self.costs.hit_seconds(mix.fixed, mix.dynamic, mix.output)

    def crowd_step_s(self, crowd: Crowd) -> float:
        """A decode step with everybody in the batch, halfway through."""
        context = crowd.mix.fixed + crowd.mix.dynamic + crowd.mix.output / 2
        return self.costs.decode_seconds(crowd.concurrency, crowd.concurrency * context)

    @property
    def costs(self) -> Costs:
        """By its data sheet. Two FLOPs per parameter and token and attention over
        what precedes bound prefill; reading the weights and the KV cache, decode."""
        device, model = self.device, self.model
        flops = device.peak_flops * device.compute_share
        memory = device.memory_bytes_s * device.memory_share
        weights = 2 * (model.body_parameters + model.head_parameters)
        return Costs(
            name=self.name,
            layers=model.layers,
            kv_bytes=model.kv_bytes,
            bus_bytes_per_s=device.bus_bytes_s,
            bus_latency_s=0.0001,
            prefill_least_s=weights / memory,
            prefill_token_s=2 * model.body_parameters / flops,
            prefill_attention_s=4 * model.layers * model.hidden / flops,
            decode_s=weights / memory,
            decode_token_s=model.kv_bytes / memory,
            source=f"data sheets; {device.compute_share:.0%} of the peak arithmetic and "
            f"{device.memory_share:.0%} of the memory bandwidth are estimates",
        )


_A10G = Testbed(
    name="a10g",
    device=Device(
        name="A10G 24 GB",
        peak_flops=70e12,  # NVIDIA's A10G brief for AWS G5 instances: 70 TFLOPS FP16
        compute_share=0.8,
        memory_bytes_s=600e9,  # the same
        memory_share=0.85,
        bus_bytes_s=2e9,  # the paper: "PCIe Gen1, 2 GB/s"
    ),
    model=Model(
        name="Llama-3.1-8B",
        layers=32,
        hidden=4096,
        body_parameters=6.98e9,
        head_parameters=0.525e9,  # 128256 x 4096
        kv_bytes=128 << 10,
        heads=32,
        kv_heads=8,
        intermediate=14_336,
        vocab=128_256,
    ),
    pool_tokens=36_864,
    fig5={
        Mix(4096, 32, 32): Paper(1.609, 1.916),
        Mix(4096, 128, 128): Paper(1.159, 1.237),
        Mix(4096, 1024, 1024): Paper(1.027, 1.054),
        Mix(8192, 32, 32): Paper(1.587, 2.908),
        Mix(8192, 128, 128): Paper(1.252, 1.490),
        Mix(8192, 1024, 1024): Paper(1.078, 1.060),
    },
)

_H100_80GB = Device(
    name="H100 80 GB",
    peak_flops=989e12,  # NVIDIA's data sheet, SXM, dense
    compute_share=0.65,
    memory_bytes_s=3.35e12,  # the same
    memory_share=0.8,
    bus_bytes_s=64e9,  # the paper: PCIe Gen5, 64 GB/s
)
_H100 = Testbed(
    name="h100",
    device=_H100_80GB,
    model=Model(
        name="Qwen2.5-32B",
        layers=64,
        hidden=5120,
        body_parameters=31.0e9,
        head_parameters=0.778e9,  # 152064 x 5120
        kv_bytes=256 << 10,
        heads=40,
        kv_heads=8,
        intermediate=27_648,
        vocab=152_064,
    ),
    pool_tokens=36_864,
    fig5={
        Mix(4096, 32, 32): Paper(1.170, 1.427),
        Mix(4096, 256, 256): Paper(1.013, 1.035),
        Mix(4096, 1024, 1024): Paper(1.014, 1.015),
        Mix(8192, 32, 32): Paper(0.805, 1.263),
        Mix(8192, 256, 256): Paper(0.953, 1.102),
        Mix(8192, 1024, 1024): Paper(0.995, 1.026),
    },
)

TESTBEDS = {testbed.name: testbed for testbed in (_A10G, _H100)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowded:
    """A testbed of Figure 6, and the crowds that the paper ran on it."""

    testbed: Testbed
    thinned: int
    """Every concurrency is divided by it on the emulated accelerator, and the pool."""
    fig6: dict[Crowd, Paper]
    peer: tuple[int, Paper]
    """Figure 8: so many tasks at a time, four agents each."""


CROWDED = {
    crowded.testbed.name: crowded
    for crowded in (
        Crowded(
            testbed=_H100,
            thinned=1,
            fig6={
                Crowd(Mix(512, 256, 256), 20): Paper(1.103, 1.136),
                Crowd(Mix(1024, 256, 256), 10): Paper(0.958, 1.150),
            },
            peer=(16, Paper(1.096, 1.120)),
        ),
        Crowded(
            testbed=Testbed(
                name="h100-8b",
                device=_H100_80GB,
                model=_A10G.model,
                # 0.88 of the memory less the weights, over 128 KiB; an estimate.
                pool_tokens=414_000,
                fig5={},
            ),
            thinned=4,
            fig6={
                Crowd(Mix(512, 256, 256), 128): Paper(0.567, 1.019),
                Crowd(Mix(1024, 256, 256), 64): Paper(0.571, 1.250),
            },
            peer=(128, Paper(0.988, 1.067)),
        ),
    )
}
