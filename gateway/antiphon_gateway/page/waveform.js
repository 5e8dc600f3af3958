// Draws what is heard and said at this moment, for as long as there is any of it.

const LOUD = 0.25; // root mean square of speech close to a microphone

/**
 * Draws each analyser of `sources()` in a colour of the canvas's style, until there are none. Calls
 * `onLevel(level)` for each source with `isMicrophone`, from 0 (silence) to 1, and with 0 at the end.
 */
export class Waveform {
  constructor(canvas, sources, onLevel) {
    this.canvas = canvas;
    this.sources = sources;
    this.onLevel = onLevel;
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
    for (const { analyser, colour, isMicrophone } of this.sources()) {
      live = true;
      analyser.getFloatTimeDomainData(this.values);
      if (isMicrophone) this.onLevel(this.level());
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
    else this.onLevel(0);
  }

  /** Its square root, so that quiet speech is seen too. */
  level() {
    const power = this.values.reduce((sum, value) => sum + value * value, 0) / this.values.length;
    return Math.min(1, Math.sqrt(Math.sqrt(power) / LOUD));
  }
}
