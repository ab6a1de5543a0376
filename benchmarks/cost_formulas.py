"""What a run costs, in closed formulas: pure functions of a few rates and stated assumptions.

`cost_model.py` prints them as tables, `cost_simulation.py` checks them.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist


@dataclass(frozen=True)
class Rates:
    """What one GPU does. Each is measured by the script that writes the row of the same name."""

    stage1_16_pairs: float = 3_200.0  # images/s; training, 32 images per step
    stage1_64_pairs: float = 4_500.0  # images/s; training, 128 images per step
    extract: float = 3_000.0  # images/s; points and descriptors, two passes: the image and its mirror image
    recovery_fit_200k: float = 10.0  # s; K-means with K and with M on the sample, all restarts and iterations
    recovery_assign_200k: float = 1.0  # s; assigning the 200,000 x 30 x 2 vectors, with K and with M


@dataclass(frozen=True)
class Assumptions:
    """The method's numbers (preset paper), and of the machines what was not measured."""

    parameters: float = 6.77e6  # numbers; weights of the network, one gradient each
    gradient_bytes: int = 4  # B; float32; bfloat16 would halve the traffic
    views: float = 6.4e6  # images; least that Stage 1 looks at: 200,000 steps of 16 pairs
    views_stage2: float = 3.2e6  # images; least that Stage 2 looks at: 200,000 steps of 16
    views_per_image: float = 1.0  # times; with more data than that, how often each stage looks at an image
    least_steps: float = 6_300.0  # steps; fewest of Stage 1 (preset fast); this bounds the whole batch
    most_images: float = 128.0  # images; largest batch of one GPU
    recoveries: int = 35  # times; 34 rounds and the last clustering
    points: int = 30  # points; found per image
    descriptor: int = 256  # numbers; length of a descriptor
    K: int = 30  # clusters; of the filter
    M: int = 100  # clusters; of the labels
    sample: float = 8e5  # vectors; K-means is fitted on
    restarts: int = 10  # times; K-means, best of
    iterations: int = 100  # iterations; of one K-means run, at most
    iteration_floor: float = 1e-4  # s; launching the kernels of one K-means iteration
    first_keypoints: float = 1_500.0  # images/s; generic keypoints and outliers, one GPU
    decode: float = 950.0  # images/s; JPEG decoding and cropping, 8 threads of one process (measured)
    raw_bytes: int = 256 * 256 * 3  # B; a network image as uint8
    jpeg_bytes: int = 25_000  # B; the same as JPEG, quality 90
    label_bytes: int = 36  # B; a labelled point: place, image, score, two labels
    gpu_memory: float = 141e9  # B; of one GPU
    node: int = 8  # GPUs; that NVLink joins
    nvlink: float = 360e9  # B/s; reached between GPUs of a node, each way
    network: float = 40e9  # B/s; reached between nodes, per GPU, each way (400 Gbit/s of wire)
    hop_nvlink: float = 3e-6  # s; starting one message between GPUs of a node
    hop_network: float = 1e-5  # s; starting one message between nodes
    jitter: float = 0.03  # share; standard deviation of one GPU's time for one step
    hiccup_share: float = 1e-4  # share; steps in which one GPU stumbles
    hiccup: float = 1.0  # steps; what a stumble costs
    speed_spread: float = 0.02  # share; standard deviation of lasting differences between GPUs
    link_jitter: float = 0.1  # share; standard deviation of one message's time (simulation only)


GIVEN = Assumptions()


def views(images: float, least: float, given: Assumptions = GIVEN) -> float:
    """Images a stage looks at, counting repeats: the paper's number, or more where there is more data."""
    return max(least, given.views_per_image * images)


def step_compute(batch: float, rates: Rates) -> float:
    """Seconds of one GPU's step on `batch` images: a fixed part and one that grows, fitted to two batches.

    >>> round(step_compute(128, Rates()) * 4500)
    128
    """
    small, large = 32 / rates.stage1_16_pairs, 128 / rates.stage1_64_pairs
    per_image = (large - small) / (128 - 32)
    return max(small - 32 * per_image, 0.0) + per_image * batch


def expected_largest(count: int) -> float:
    """How many standard deviations the largest of `count` normal numbers lies above the mean (Blom)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


def slowest(gpus: int, given: Assumptions = GIVEN) -> float:
    """Time of the slowest of the GPUs over the time of a usual one: all wait for it in every step."""
    stumbles = 1 - (1 - given.hiccup_share) ** gpus
    return 1 + (1 - stumbles) * given.jitter * expected_largest(gpus) + stumbles * given.hiccup


def all_reduce(gpus: int, size: float, given: Assumptions = GIVEN) -> float:
    """Seconds to sum `size` bytes over all GPUs: rings inside nodes, then rings of nodes on shares of it."""
    inside, nodes = layout(gpus, given)
    seconds = 2 * (inside - 1) * (size / inside / given.nvlink + given.hop_nvlink)
    return seconds + 2 * (nodes - 1) * (size / inside / nodes / given.network + given.hop_network)


def traffic(gpus: int, size: float, given: Assumptions = GIVEN) -> tuple[float, float]:
    """Bytes one GPU sends per sum of `size` bytes: inside its node, and to other nodes."""
    inside, nodes = layout(gpus, given)
    return 2 * (inside - 1) / inside * size, 2 * (nodes - 1) / nodes * size / inside


def layout(gpus: int, given: Assumptions = GIVEN) -> tuple[int, int]:
    """GPUs of a node, and nodes."""
    return min(gpus, given.node), max(1, gpus // given.node)


def gradient_size(given: Assumptions = GIVEN) -> float:
    return given.parameters * given.gradient_bytes


def sums_size(clusters: int, given: Assumptions = GIVEN) -> float:
    """Bytes of the sums and counts that one K-means iteration joins, in float64."""
    return clusters * (given.descriptor + 1) * 8.0


@dataclass(frozen=True)
class Training:
    """A stage of training on some GPUs."""

    steps: float
    batch: float  # images of one GPU in a step
    busy: int  # GPUs that have work
    seconds: float


def training(gpus: int, looked_at: float, rates: Rates, given: Assumptions = GIVEN) -> Training:
    """A stage that looks at so many images; where the batch may not grow further, GPUs are left idle."""
    together = min(gpus * given.most_images, looked_at / given.least_steps)
    busy = max(1, min(gpus, int(together // 2)))
    steps, batch = looked_at / together, together / busy
    step = step_compute(batch, rates) * slowest(busy, given) + all_reduce(busy, gradient_size(given), given)
    return Training(steps, batch, busy, steps * step)


def spread_out(gpus: int, images: float, rate: float, given: Assumptions = GIVEN) -> float:
    """Seconds for work that needs no exchange, each GPU its share: the slowest GPU's time."""
    return images / rate / gpus * (1 + given.speed_spread * expected_largest(gpus))


def kmeans_fit(gpus: int, rates: Rates, given: Assumptions = GIVEN) -> float:
    """Seconds of fitting both K-means of one recovery on a sample of fixed size."""
    each = given.restarts * given.iterations
    compute = max(rates.recovery_fit_200k / gpus, 2 * each * given.iteration_floor)
    seeding = 2 * (given.K + given.M) * all_reduce(gpus, given.restarts * given.descriptor * 4.0, given)
    exchange = sum(
        each * all_reduce(gpus, sums_size(clusters, given), given) for clusters in (given.K, given.M)
    )
    return compute * slowest(gpus, given) + seeding + exchange


def assignment(gpus: int, images: float, rates: Rates, given: Assumptions = GIVEN) -> float:
    return spread_out(gpus, images, 200_000 / rates.recovery_assign_200k, given)


def parts(
    images: float, gpus: int, rates: Rates, only_next: bool, given: Assumptions = GIVEN
) -> dict[str, float]:
    """Seconds of each part of a run. `only_next`: a recovery labels only what the next round will look at."""
    stage1 = views(images, given.views, given)
    stage2 = views(images, given.views_stage2, given)
    labelled = stage1 + stage2 if only_next else images * given.recoveries
    return {
        "reading images": spread_out(gpus, images, given.decode, given),
        "first keypoints": spread_out(gpus, images, given.first_keypoints, given),
        "Stage 1 training": training(gpus, stage1, rates, given).seconds,
        "applying Phi": spread_out(gpus, labelled, rates.extract, given),
        "K-means, fitting": given.recoveries * kmeans_fit(gpus, rates, given),
        "K-means, assigning": assignment(gpus, labelled, rates, given),
        "Stage 2 training": training(gpus, stage2, rates, given).seconds,
    }


def round_formula(gpus: int, images: float, rates: Rates, given: Assumptions = GIVEN) -> float:
    """The same by formula: what `parts` says of the parts of a round, divided among the recoveries."""
    seconds = parts(images, gpus, rates, only_next=False, given=given)
    of_round = ("Stage 1 training", "applying Phi", "K-means, fitting", "K-means, assigning")
    return sum(seconds[name] for name in of_round) / given.recoveries
