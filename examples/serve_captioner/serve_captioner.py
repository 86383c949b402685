"""Serve a captioner: `POST /caption` with the bytes of an image returns `{"caption": ...}`.

This executes the code in the repository of the captioner. Review it before you serve a captioner that is not yours.
"""

import argparse
import asyncio
import io

import PIL.Image
from aiohttp import web
from transformers import pipeline

LARGEST_IMAGE = 20 * 2**20  # bytes


def make_app(captioner) -> web.Application:
    """Create the application of a pipeline; images are captioned one after the other, without blocking requests."""
    turn = asyncio.Lock()

    async def caption(request: web.Request) -> web.Response:
        try:
            # Only these formats: Pillow would start another program for PostScript.
            image = PIL.Image.open(io.BytesIO(await request.read()), formats=("JPEG", "PNG", "WEBP", "GIF", "BMP"))
            image.load()
        except (OSError, ValueError) as error:
            raise web.HTTPBadRequest(text=f"The body is no image: {error}") from error
        async with turn:
            records = await asyncio.to_thread(captioner, image)
        return web.json_response({"caption": records[0]["generated_text"]})

    app = web.Application(client_max_size=LARGEST_IMAGE)
    app.router.add_post("/caption", caption)
    return app


def main() -> None:
    """Load the captioner and serve it."""
    parser = argparse.ArgumentParser(description="Captions over HTTP.")
    parser.add_argument("model", help="name on the Hub, or directory")
    parser.add_argument("--revision", help="commit to serve; default: the newest one")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    args = parser.parse_args()
    captioner = pipeline(model=args.model, revision=args.revision, trust_remote_code=True)
    web.run_app(make_app(captioner), host=args.host, port=args.port)


if __name__ == "__main__":
    main()
