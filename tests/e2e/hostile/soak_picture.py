"""Draws samples of (seconds, MiB, descriptors) over time as an SVG."""

WIDTH, HEIGHT, LEFT, TOP, GAP = 720, 130, 60, 40, 50


def step_for(most):
    """The round step that divides 0..most into at most seven."""
    return next(m * 10**k for k in range(12) for m in (1, 2, 5) if most <= 7 * m * 10**k)


def panel(number, name, samples, column):
    top = TOP + number * (HEIGHT + GAP)
    most = max(s[column] for s in samples) or 1
    end = samples[-1][0] or 1
    step = step_for(most)
    scale = HEIGHT / (most * 1.1)
    parts = [f'<text x="{LEFT}" y="{top - 8}" font-weight="bold">{name}</text>']
    for i in range(int(most * 1.1 / step) + 1):
        y = top + HEIGHT - i * step * scale
        parts.append(f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{i * step:g}</text>')
    points = " ".join(f"{LEFT + s[0] / end * WIDTH:.1f},{top + HEIGHT - s[column] * scale:.1f}" for s in samples)
    parts.append(f'<polyline points="{points}" fill="none" stroke="#1f5fa8" stroke-width="1.5"/>')
    for i in range(7):
        x = LEFT + WIDTH * i / 6
        parts.append(f'<text x="{x:.0f}" y="{top + HEIGHT + 16}" text-anchor="middle">{end * i / 360:.4g}</text>')
    return parts


def draw(title, samples):
    height = TOP + 2 * (HEIGHT + GAP) + 10
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 30}" height="{height}" '
             f'font-family="sans-serif" font-size="12">',
             '<rect width="100%" height="100%" fill="white"/>',
             f'<text x="{LEFT}" y="16" font-size="14">{title}</text>']
    parts += panel(0, "resident memory, MiB", samples, 1)
    parts += panel(1, "file descriptors", samples, 2)
    parts += [f'<text x="{LEFT + WIDTH / 2:.0f}" y="{height - 4}" text-anchor="middle">minutes</text>', "</svg>"]
    return "\n".join(parts) + "\n"
