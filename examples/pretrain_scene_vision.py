"""Train a small vision model on drawn objects, for captioners of drawn scenes.

    python examples/pretrain_scene_vision.py --output_dir runs/scene_vision

A ResNet learns colour, shape, size, number and place of the objects in each cell of its feature map from their boxes,
without captions. Its last feature map of an image of 64 x 64 pixels has 4 x 4 cells. The directory can be passed to
`hf-captioners train --dataset scenes --vision_model`. About 10 CPU minutes.
"""

import argparse

from hf_captioners.demo.models import image_preparation, train_backbone


def main() -> None:
    """Train and save the vision model and its image processor."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--images", type=int, default=26_000, help="drawn images; each is seen once")
    parser.add_argument("--image_size", type=int, default=64, help="side of the images in pixels")
    parser.add_argument("--seed", type=int, default=0, help="seed of images and weights")
    args = parser.parse_args()
    model, accuracy = train_backbone(args.images, args.image_size, args.seed)
    model.save_pretrained(args.output_dir)
    image_preparation(args.image_size).save_pretrained(args.output_dir)
    shares = ", ".join(f"{name} {share:.1%}" for name, share in accuracy.items())
    print(f"Saved {args.output_dir}. Accuracy on held-out images: {shares}.")


if __name__ == "__main__":
    main()
