// The page of a watch in a frame without scripts; Python is asked for it again after some seconds.
export default {
  render({ model, el }) {
    const frame = document.createElement("iframe");
    frame.setAttribute("sandbox", "");
    frame.title = "llmprof watch";
    frame.style.cssText = "width: 100%; height: 640px; border: 0";
    const show = () => { frame.srcdoc = model.get("page"); };
    show();
    el.append(frame);
    model.on("change:page", show);
    const timer = setInterval(() => model.send({ again: true }), 1000 * model.get("every_s"));
    return () => { clearInterval(timer); model.off("change:page", show); };
  },
};
