"""An upload becomes four jobs, one for each resolution."""

from examples.video_encoding import bucket, encoder
from mainspring import Context, Mainspring, RunHandle

app = Mainspring()

#: 1 is the most urgent. The order of a video is fixed; priorities say which video gets the next free slot.
PRIORITIES = {"4K": 1, "1080p": 2, "720p": 3, "480p": 4}


async def upload(video: str, raw: bytes) -> list[RunHandle[str]]:
    """The claim check: what goes through the queue is the name of the file, never the file.

    The same upload again makes nothing new: encoding twice costs money.
    """
    source = bucket.write(f"raw/{video}", raw)
    return await app.submit_many(
        encode.options(priority=priority, ordering_key=video, unique=f"{video} {resolution}").prepare(
            video, source, resolution
        )
        for resolution, priority in PRIORITIES.items()
    )


@app.task(queue="encoding", retries=3, timeout="5m")
def encode(context: Context, video: str, source: str, resolution: str) -> str:
    """A plain function: it runs in a child process, which can be killed when its five minutes are over."""
    target = f"encoded/{video}/{resolution}"
    if context.attempt == 1 and encoder.is_flaky(target):
        raise encoder.EncoderCrashed(f"{resolution} of {video}")
    encoded = encoder.encode(bucket.read(source), resolution, context.progress)
    context.log.info("%s: %d bytes", target, len(encoded))
    return bucket.write(target, encoded)
