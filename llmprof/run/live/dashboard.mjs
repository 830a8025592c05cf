// The page of a watch in a frame without scripts; Python is asked for it again after some seconds.
export default {
  render({ model, el }) {
    const frame = document.createElement("iframe");
    frame.setAttribute("sandbox", "");
    frame.title = "llmprof watch";
    frame.style.cssText = "width: 100%; height: 640px; border: 0";
    const show = () => {
      const light = document.body.dataset.jpThemeLight; // of JupyterLab; elsewhere the browser's theme holds
      const theme = light ? ` data-theme="${light === "true" ? "light" : "dark"}"` : "";
      frame.srcdoc = model.get("page").replace("<html", `<html${theme}`);
    };
    show();
    el.append(frame);
    model.on("change:page", show);
    const switched = new MutationObserver(show);
    switched.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
    const timer = setInterval(() => model.send({ again: true }), 1000 * model.get("every_s"));
    return () => { clearInterval(timer); switched.disconnect(); model.off("change:page", show); };
  },
};
