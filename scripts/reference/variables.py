"""docs/reference/variables.md."""

from typing import Final

from shunter.lang.check import FIELDS
from shunter.model.vocabulary import VARIABLES
from shunter.observe import catalog

from reference.markdown import code, table

_INTRO: Final = """# Variables of the policy language

Integers and doubles compare freely. `labels` are maps of text to text: `has(worker.labels.tier)` and `worker.labels["tier"]` work on
them, and on them only.

A variable marked *metric* comes from Prometheus. When its value is missing, stale or not a number, whatever depends on it has **no
answer**: the finding is `inconclusive`, and nothing voluntary happens. `metrics.<name>` is what a policy declares under `spec.metrics`,
always a double, in the unit that it declares."""


def page() -> str:
    """The whole page."""
    rows = [(code(v.name), v.kind.value, v.unit, "metric" if v.metric else "", v.doc) for v in VARIABLES.values()]
    return "\n\n".join(
        [
            _INTRO,
            table(("variable", "type", "unit", "", "meaning"), rows),
            "## Which key sees which variables",
            "A variable is named here by its first part: `pools` stands for all of `pools.prefill` and `pools.decode`.",
            table(("kind", "key", "must give", "sees"), _fields()),
            "## Which Prometheus series feed the metrics",
            _order(),
            table(("metric", "unit", *(code(engine) for engine in catalog.ENGINES)), _series()),
        ]
    )


def _order() -> str:
    """The catalog's own words on which series counts, as they stand in its docstring."""
    return (catalog.__doc__ or "").partition("\n\n")[2].strip()


def _fields() -> list[tuple[str, ...]]:
    gives = {"bool": "true or false", "number": "a number"}
    return [
        (kind, code(f"spec.{path}"), gives[result], ", ".join(code(root) for root in sorted(roots)))
        for (kind, path), (result, roots) in FIELDS.items()
    ]


def _series() -> list[tuple[str, ...]]:
    return [
        (code(f"worker.{field.name}"), field.unit, *(_gauges(field, engine) for engine in catalog.ENGINES))
        for field in catalog.Catalog().fields
    ]


def _gauges(field: catalog.Field, engine: str) -> str:
    """The names in their order, each with the labels that it must have."""
    names = []
    for gauge in field.gauges_for(engine):
        labels = ",".join(f'{key}="{value}"' for key, value in gauge.labels.items())
        names.append(code(f"{gauge.name}{{{labels}}}" if labels else gauge.name))
    return ", then ".join(names)
