"""The shape of the source tree, as ``tools.house`` measures it."""

from tools.house import ROOT, count_functions_of_submit


def test_a_submit_passes_few_functions_on_its_way_to_the_store() -> None:
    functions, files = count_functions_of_submit(ROOT / "src")
    # Wrappers that do nothing add up. These limits leave room for a feature, not for a layer.
    assert 20 < functions <= 100
    assert 10 < files <= 35
