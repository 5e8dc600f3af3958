"""`python -m antiphon_tools.chart`: write the generated files of the chart again."""

from __future__ import annotations

from antiphon_tools.chart.generated import FILES


def main() -> None:
    """Write every generated file."""
    for path, text in FILES.items():
        path.write_text(text())


if __name__ == "__main__":
    main()
