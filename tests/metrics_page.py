"""A page of Prometheus series, read as Prometheus does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

TIMEOUT_S = 120.0


class Page:
    """The samples of one scrape."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples = samples

    def __call__(self, name: str, **labels: str) -> float:
        """The sum of all samples with these labels; 0 when there is none."""
        return sum(sample.value for sample in self.all(name, **labels))

    def all(self, name: str, **labels: str) -> Iterator[Sample]:
        """The samples with these labels."""
        for sample in self.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                yield sample

    def begin_with(self, prefix: str) -> set[str]:
        """The names that begin so."""
        return {sample.name for sample in self.samples if sample.name.startswith(prefix)}


async def read_page(url: str) -> Page:
    """Scrape it; no series may come twice."""
    async with httpx.AsyncClient(timeout=TIMEOUT_S) as http:
        response = await http.get(url)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    families = list(text_string_to_metric_families(response.text))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    samples = [sample for family in families for sample in family.samples]
    keys = [(sample.name, *sorted(sample.labels.items())) for sample in samples]
    assert len(keys) == len(set(keys))
    return Page(samples)
