"""Estimate the cost of a run with closed-form formulas: pure functions of a few rates and stated assumptions.

`cost_model.py` prints the results as tables, and `cost_simulation.py` checks them by simulation.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist


@dataclass(frozen=True)
class Rates:
    """Speed of one GPU. A benchmark measures each of these numbers and writes a row of the same name.

    The defaults are the project's targets. They are assumed for rates that have not been measured.
    """

    stage1_16_pairs: float = 3_200.0  # images/s; training, 32 images per step
    stage1_64_pairs: float = 4_500.0  # images/s; training, 128 images per step
    extract: float = 3_000.0  # images/s; points and descriptors of the image and its mirror image
    recovery_fit_200k: float = 10.0  # s; fitting K-means with K and with M on the sample, all restarts
    recovery_assign_200k: float = 1.0  # s; assigning 200,000 x 30 x 2 vectors to K and to M clusters


@dataclass(frozen=True)
class Assumptions:
    """Properties of the method (preset `paper`) and of the machines, measured only if the comment says so."""

    parameters: float = 6.77e6  # values; weights of the network, one gradient each
    gradient_bytes: int = 4  # B; float32; bfloat16 would halve the traffic
    min_views_stage1: float = 6.4e6  # images; minimum processed by Stage 1: 200,000 steps of 16 pairs
    min_views_stage2: float = 3.2e6  # images; minimum processed by Stage 2: 200,000 steps of 16
    views_per_image: float = 1.0  # times; passes over a data set that is larger than a stage's minimum
    min_steps: float = 6_300.0  # steps; minimum of a stage (Stage 1 of preset fast); limits the total batch
    max_batch: float = 128.0  # images; largest batch of one GPU
    recoveries: int = 35  # times; 34 rounds and the final clustering
    points: int = 30  # points; detected per image
    descriptor: int = 256  # values; length of a descriptor
    K: int = 30  # clusters; used to filter keypoints
    M: int = 100  # clusters; used to label keypoints
    sample: float = 8e5  # vectors; number that K-means is fitted on
    restarts: int = 10  # times; K-means runs, of which the best is kept
    iterations: int = 100  # iterations; maximum for one K-means run
    iteration_floor: float = 1e-4  # s; time to launch the kernels of one K-means iteration
    first_keypoints: float = 1_500.0  # images/s; generic keypoints and outlier removal, one GPU
    decode: float = 950.0  # images/s; JPEG decoding and cropping, 8 threads of one process (measured)
    raw_bytes: int = 256 * 256 * 3  # B; one network input image as uint8
    jpeg_bytes: int = 25_000  # B; the same image as JPEG, quality 90
    label_bytes: int = 36  # B; one labeled point: position, image, score, two labels
    gpu_memory: float = 141e9  # B; memory of one GPU
    node: int = 8  # GPUs; number connected by NVLink
    nvlink: float = 360e9  # B/s; achieved between GPUs of a node, each way
    network: float = 40e9  # B/s; achieved between nodes, per GPU, each way (400 Gbit/s links)
    hop_nvlink: float = 3e-6  # s; latency of one message between GPUs of a node
    hop_network: float = 1e-5  # s; latency of one message between nodes
    jitter: float = 0.03  # fraction; standard deviation of one GPU's time for one step
    stall_fraction: float = 1e-4  # fraction; steps in which one GPU stalls
    stall: float = 1.0  # steps; time lost in a stall
    speed_spread: float = 0.02  # fraction; standard deviation of the speed of different GPUs
    link_jitter: float = 0.1  # fraction; standard deviation of one message's time (simulation only)


ASSUMPTIONS = Assumptions()


def count_views(images: float, minimum: float, assumptions: Assumptions = ASSUMPTIONS) -> float:
    """Return how many images a stage processes, counting each image as often as it is used."""
    return max(minimum, assumptions.views_per_image * images)


def compute_step_seconds(batch: float, rates: Rates) -> float:
    """Return the seconds that one GPU needs for a step on `batch` images.

    A step takes a fixed time plus a time per image. Both follow from two measured batch sizes.

    >>> round(compute_step_seconds(128, Rates()) * 4500)
    128
    """
    small, large = 32 / rates.stage1_16_pairs, 128 / rates.stage1_64_pairs
    per_image = (large - small) / (128 - 32)
    return max(small - 32 * per_image, 0.0) + per_image * batch


def compute_expected_largest(count: int) -> float:
    """Return the expected largest of `count` standard normal samples, by Blom's approximation."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


def compute_slowest_gpu_factor(gpus: int, assumptions: Assumptions = ASSUMPTIONS) -> float:
    """Return how much longer the slowest GPU takes than a typical one. Every step waits for the slowest."""
    stalls = 1 - (1 - assumptions.stall_fraction) ** gpus
    return 1 + (1 - stalls) * assumptions.jitter * compute_expected_largest(gpus) + stalls * assumptions.stall


def estimate_all_reduce(gpus: int, size: float, assumptions: Assumptions = ASSUMPTIONS) -> float:
    """Return the seconds to sum `size` bytes over all GPUs, with rings inside the nodes and between them."""
    gpus_per_node, nodes = split_into_nodes(gpus, assumptions)
    within_part = size / gpus_per_node
    between_part = within_part / nodes
    seconds_in_nodes = 2 * (gpus_per_node - 1) * (within_part / assumptions.nvlink + assumptions.hop_nvlink)
    seconds_between_nodes = 2 * (nodes - 1) * (between_part / assumptions.network + assumptions.hop_network)
    return seconds_in_nodes + seconds_between_nodes


def count_sent_bytes(gpus: int, size: float, assumptions: Assumptions = ASSUMPTIONS) -> tuple[float, float]:
    """Return the bytes that one GPU sends inside its node and to other nodes to sum `size` bytes."""
    gpus_per_node, nodes = split_into_nodes(gpus, assumptions)
    return 2 * (gpus_per_node - 1) / gpus_per_node * size, 2 * (nodes - 1) / nodes * size / gpus_per_node


def split_into_nodes(gpus: int, assumptions: Assumptions = ASSUMPTIONS) -> tuple[int, int]:
    """Return the number of GPUs per node and the number of nodes."""
    return min(gpus, assumptions.node), max(1, gpus // assumptions.node)


def count_gradient_bytes(assumptions: Assumptions = ASSUMPTIONS) -> float:
    """Return the bytes of all gradients of the network."""
    return assumptions.parameters * assumptions.gradient_bytes


def count_sum_bytes(clusters: int, assumptions: Assumptions = ASSUMPTIONS) -> float:
    """Return the bytes of the float64 sums and counts exchanged in one K-means iteration."""
    return clusters * (assumptions.descriptor + 1) * 8.0


@dataclass(frozen=True)
class Training:
    """Schedule and duration of one training stage."""

    steps: float
    batch: float  # images per GPU and step
    busy: int  # GPUs that take part
    seconds: float


def plan_training(
    gpus: int, num_views: float, rates: Rates, assumptions: Assumptions = ASSUMPTIONS
) -> Training:
    """Plan a stage that processes `num_views` images. An image counts once for each use.

    The total batch is limited by the memory of the GPUs and by the minimum number of steps. GPUs that would
    get fewer than 2 images per step stay idle.
    """
    total_batch = min(gpus * assumptions.max_batch, num_views / assumptions.min_steps)
    busy = max(1, min(gpus, int(total_batch // 2)))
    steps, batch = num_views / total_batch, total_batch / busy
    step_seconds = compute_step_seconds(batch, rates) * compute_slowest_gpu_factor(
        busy, assumptions
    ) + estimate_all_reduce(busy, count_gradient_bytes(assumptions), assumptions)
    return Training(steps, batch, busy, steps * step_seconds)


def estimate_independent_work(
    gpus: int, images: float, rate: float, assumptions: Assumptions = ASSUMPTIONS
) -> float:
    """Return the seconds of the slowest GPU for work that is split evenly and needs no communication."""
    return images / rate / gpus * (1 + assumptions.speed_spread * compute_expected_largest(gpus))


def estimate_kmeans_fit(gpus: int, rates: Rates, assumptions: Assumptions = ASSUMPTIONS) -> float:
    """Return the seconds to fit both K-means of one recovery (with K and with M) on the sample."""
    iterations = assumptions.restarts * assumptions.iterations  # number for one of the two K-means
    compute = max(rates.recovery_fit_200k / gpus, 2 * iterations * assumptions.iteration_floor)
    seeding = (
        2
        * (assumptions.K + assumptions.M)
        * estimate_all_reduce(gpus, assumptions.restarts * assumptions.descriptor * 4.0, assumptions)
    )
    exchange = sum(
        iterations * estimate_all_reduce(gpus, count_sum_bytes(clusters, assumptions), assumptions)
        for clusters in (assumptions.K, assumptions.M)
    )
    return compute * compute_slowest_gpu_factor(gpus, assumptions) + seeding + exchange


def estimate_assignment(
    gpus: int, images: float, rates: Rates, assumptions: Assumptions = ASSUMPTIONS
) -> float:
    """Return the seconds to assign the descriptors of all images to clusters."""
    return estimate_independent_work(gpus, images, 200_000 / rates.recovery_assign_200k, assumptions)


def estimate_seconds_by_part(
    images: float, gpus: int, rates: Rates, on_demand: bool, assumptions: Assumptions = ASSUMPTIONS
) -> dict[str, float]:
    """Return the seconds of each part of a run.

    Args:
        images: Number of images in the data set.
        gpus: Number of GPUs.
        rates: Measured throughput of one GPU.
        on_demand: Whether a recovery labels only the images that the next round will use.
        assumptions: Properties of the method and of the machines.
    """
    stage1 = count_views(images, assumptions.min_views_stage1, assumptions)
    stage2 = count_views(images, assumptions.min_views_stage2, assumptions)
    labeled = stage1 + stage2 if on_demand else images * assumptions.recoveries
    return {
        "reading images": estimate_independent_work(gpus, images, assumptions.decode, assumptions),
        "first keypoints": estimate_independent_work(gpus, images, assumptions.first_keypoints, assumptions),
        "Stage 1 training": plan_training(gpus, stage1, rates, assumptions).seconds,
        "describing keypoints": estimate_independent_work(gpus, labeled, rates.extract, assumptions),
        "K-means, fitting": assumptions.recoveries * estimate_kmeans_fit(gpus, rates, assumptions),
        "K-means, assigning": estimate_assignment(gpus, labeled, rates, assumptions),
        "Stage 2 training": plan_training(gpus, stage2, rates, assumptions).seconds,
    }


def estimate_round(gpus: int, images: float, rates: Rates, assumptions: Assumptions = ASSUMPTIONS) -> float:
    """Return the seconds of one round: one recovery and the training that follows it."""
    seconds = estimate_seconds_by_part(images, gpus, rates, on_demand=False, assumptions=assumptions)
    in_round = ("Stage 1 training", "describing keypoints", "K-means, fitting", "K-means, assigning")
    return sum(seconds[name] for name in in_round) / assumptions.recoveries
