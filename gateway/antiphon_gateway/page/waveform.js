// Draws what is heard and said at this moment, for as long as there is any of it.

/** Draws each analyser of `sources()` in a colour of the canvas's style, until there are none. */
export class Waveform {
  constructor(canvas, sources) {
    this.canvas = canvas;
    this.sources = sources;
    this.values = new Float32Array(2048);
    this.running = false;
  }

  start() {
    if (!this.running) {
      this.running = true;
      requestAnimationFrame(() => this.draw());
    }
  }

  draw() {
    const pen = this.canvas.getContext("2d");
    const { width, height } = this.canvas;
    pen.clearRect(0, 0, width, height);
    const colours = getComputedStyle(this.canvas);
    let live = false;
    for (const { analyser, colour } of this.sources()) {
      live = true;
      analyser.getFloatTimeDomainData(this.values);
      pen.strokeStyle = colours[colour];
      pen.lineWidth = 2;
      pen.beginPath();
      this.values.forEach((value, at) => {
        pen.lineTo((at / this.values.length) * width, ((1 - value) / 2) * height);
      });
      pen.stroke();
    }
    this.running = live;
    if (live) requestAnimationFrame(() => this.draw());
  }
}
