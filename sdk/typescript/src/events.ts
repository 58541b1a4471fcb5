// events.ts - server-sent events: bytes as they come, to what each event says.
//
// An event is lines up to an empty one; its data is what stands behind `data:`.  Comments, which the
// server sends while nothing comes, are left out.

/** Takes a stream apart, wherever it is cut. */
export class EventReader {
  private readonly decoder = new TextDecoder();
  private rest = "";

  /** The data of the events that are complete now. */
  feed(bytes: Uint8Array): string[] {
    let text = this.rest + this.decoder.decode(bytes, { stream: true });
    let held = "";
    if (text.includes("\r")) {
      if (text.endsWith("\r")) { // the line feed behind it may be still to come
        held = "\r";
        text = text.slice(0, -1);
      }
      text = text.replace(/\r\n?/g, "\n");
    }
    const blocks = text.split("\n\n");
    this.rest = (blocks.pop() ?? "") + held;
    return blocks.map(dataOf).filter((data): data is string => data !== undefined);
  }
}

function dataOf(block: string): string | undefined {
  const lines = block.split("\n").filter((line) => line.startsWith("data:"));
  if (lines.length === 0) return undefined;
  return lines.map((line) => line.slice(line.startsWith("data: ") ? 6 : 5)).join("\n");
}
