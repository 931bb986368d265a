"""What a server says is running, whatever it was asked for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KvBuffer:
    """
    One KV cache of a server, from its log. Sliding-window models have two.

    Attributes:
        cells: Positions it holds, in tokens.
        layers: Layers that use it.
        k_type: Effective element type of K.
        v_type: Effective element type of V.
        k_mib: Size of K, in MiB.
        v_mib: Size of V, in MiB.
    """

    cells: int
    layers: int
    k_type: str
    v_type: str
    k_mib: float
    v_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """
    What a server says is running, whatever it was asked for.

    Fields are None where the log has no such line.

    Attributes:
        build: Version and build number, as the server states them.
        context: Context of the one slot, in tokens.
        flash_attention: ``enabled``, ``disabled`` or ``auto``.
        kv: Its KV caches; empty where the log names none.
        rotation_k: Size of the Hadamard rotation of K, in values; 0 is none.
        rotation_v: Size of the rotation of V.
        offloaded_layers: Layers on the accelerator.
        total_layers: Layers that could be there.
        graph_splits: Parts the compute graph falls into.
        devices: Names of the devices that hold KV caches, in order.
        compute_mib: Compute buffers of all devices, in MiB.
        threads: CPU threads it computes with.
    """

    build: str | None = None
    context: int | None = None
    flash_attention: str | None = None
    kv: tuple[KvBuffer, ...] = ()
    rotation_k: int | None = None
    rotation_v: int | None = None
    offloaded_layers: int | None = None
    total_layers: int | None = None
    graph_splits: int | None = None
    devices: tuple[str, ...] = ()
    compute_mib: float | None = None
    threads: int | None = None

    @property
    def kv_mib(self) -> float | None:
        """Size of all KV caches, in MiB; None where the log named none."""
        if not self.kv:
            return None
        return sum(buffer.k_mib + buffer.v_mib for buffer in self.kv)
