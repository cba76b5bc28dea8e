"""docs/interposer.md says what native/hooks.def says."""

from __future__ import annotations

from carpool.testing.coverage import ROOT, all_names, renew, table


def test_the_tables_of_entry_points_are_up_to_date() -> None:
    page = (ROOT / "docs" / "interposer.md").read_text()
    definition = (ROOT / "native" / "hooks.def").read_text()
    assert renew(page, table(definition, all_names())) == page, "run: make docs"


def test_every_row_of_the_list_is_in_the_table() -> None:
    made = table((ROOT / "native" / "hooks.def").read_text(), set())
    for name in ("cuMemAlloc_v2", "cuLaunchKernelEx_ptsz", "nvmlDeviceGetMemoryInfo_v2", "cuGetExportTable"):
        assert made.count(f"`{name}`") == 1
    assert "| `cuMemMapArrayAsync` (`_ptsz`) |" in made
