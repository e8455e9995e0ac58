"""Layouts of ranks by name, as results are stored under: "1", "tp 2", "pp 2 tp 2", "dp 2 + ep", "pp 2, BF16 residual"."""
import re


def size(layout, dimension):
    """Of "tp", "pp" or "dp": how many."""
    found = re.search(rf"{dimension} (\d+)", layout)
    return int(found[1]) if found else 1


def short(layout):
    """For a column."""
    return re.sub(r"(tp|pp|dp) ", r"\1", layout).replace(" + ep", " ep")


def flags(layout):
    sizes = [word for name, count in re.findall(r"(tp|pp|dp) (\d+)", layout) for word in (f"--{name}", count)]
    return sizes + ["--enable-expert-parallel"] * ("+ ep" in layout) + ["--bf16-residual"] * ("BF16 residual" in layout)


def keeps_bits(layout):
    """Whether a token has the bits of one rank: stages and experts that lie elsewhere change none, shares of a product do."""
    return "tp" not in layout and "BF16" not in layout and ("dp" not in layout or "+ ep" in layout)
