// The search of a page that is opened from the disk. Browsers start no worker from a file, so that it runs in a hidden
// frame instead. The theme's worker looks for a global of this name to know where it is.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.body.appendChild(Object.assign(document.createElement("iframe"), { hidden: true }));
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = Object.assign(frame.contentDocument.createElement("script"), { src: url });
      this.ready = new Promise((loaded) => script.addEventListener("load", loaded));
      frame.contentDocument.body.append(script);
    }

    async postMessage(data) {
      await this.ready;
      this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }));
    }
  };
}
