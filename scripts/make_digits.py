"""Write powertrip/training/data/digits.npz from scikit-learn's copy of the UCI digits.

scikit-learn is no dependency of the project: run this in an environment of its own,
`pip install scikit-learn && python scripts/make_digits.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

DEFAULT = Path(__file__).parents[1] / "powertrip" / "training" / "data" / "digits.npz"


def main() -> None:
    """Write the images (1797 x 8 x 8, values 0 to 16) and their labels as bytes."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT
    digits = load_digits()
    images = digits.images.astype(np.uint8)
    if not np.array_equal(images, digits.images):
        raise SystemExit("the images are no longer whole numbers from 0 to 16")
    target.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(target, images=images, labels=digits.target.astype(np.uint8))
    print(f"{target}: {len(images)} images, {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
