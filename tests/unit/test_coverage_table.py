from tools.coverage_table import PACKAGES, format_table


def test_files_of_a_package_are_added_up() -> None:
    summaries = {
        f"src/mainspring/{package}/{name}.py": {
            "num_statements": 100,
            "covered_lines": covered,
            "num_branches": 10,
            "covered_branches": branches,
        }
        for package in PACKAGES
        for name, covered, branches in (("a", 100, 9), ("b", 75, 2))
    }
    summaries["src/mainspring/core/store.py"] = dict.fromkeys(summaries["src/mainspring/features/a.py"], 0)
    _, _, *rows = format_table(summaries)
    assert rows == [f"| `{package}` | 200 | 87.5% | 20 | 55.0% |" for package in PACKAGES]
