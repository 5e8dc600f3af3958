"""`python -m antiphon_tools.chart`: update the generated files of the chart."""

from __future__ import annotations

from antiphon_tools.chart.generated import FILES


def main() -> None:
    """Write every generated file."""
    for path, text in FILES.items():
        path.write_text(text())


if __name__ == "__main__":
    main()
