// audit(scope, rules, measured): run axe without the contrast of texts whose appearance was measured and passed.
// An appearance is all that contrast depends on: the computed colours of a text and of all that is painted behind it, its size
// and its weight. A text is measured every time where something that does not contain it is painted on it or under it.
window.audit = (() => {
  axe._audit.noHtml = true; // the source of a checked node is read nowhere
  const contrast = axe._audit.rules.find(({ id }) => id === "color-contrast");
  const applies = contrast.matches;

  // A target passes by its size or by its distance from others: the distance is measured of those that are too small.
  const [size, distance] = [axe._audit.checks["target-size"], axe._audit.checks["target-offset"]];
  const [isLargeEnough, isFarEnough, large] = [size.evaluate, distance.evaluate, new WeakSet()];
  size.evaluate = function (node, ...rest) {
    const answer = isLargeEnough.call(this, node, ...rest);
    large[answer === true ? "add" : "delete"](node);
    return answer;
  };
  distance.evaluate = function (node, ...rest) {
    return large.has(node) || isFarEnough.call(this, node, ...rest);
  };

  // A number of 53 bits in base 36 (cyrb53).
  const digest = (text) => {
    let [a, b] = [0xdeadbeef, 0x41c6ce57];
    for (let at = 0; at < text.length; at++) {
      a = Math.imul(a ^ text.charCodeAt(at), 2654435761);
      b = Math.imul(b ^ text.charCodeAt(at), 1597334677);
    }
    a = Math.imul(a ^ (a >>> 16), 2246822507) ^ Math.imul(b ^ (b >>> 13), 3266489909);
    b = Math.imul(b ^ (b >>> 16), 2246822507) ^ Math.imul(a ^ (a >>> 13), 3266489909);
    return (4294967296 * (2097151 & b) + (a >>> 0)).toString(36);
  };

  const REPLACED = new Set(["IMG", "CANVAS", "VIDEO", "IFRAME", "OBJECT", "PROGRESS", "METER", "svg"]);

  const hasText = (element) =>
    ["INPUT", "SELECT", "TEXTAREA"].includes(element.tagName) ||
    [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.nodeValue.trim());

  // By element with a text of its own: a digest of its appearance, or null where something that does not contain it may be behind it.
  const appearances = (excluded) => {
    const [behind, found, painted] = [new Map([[document, ""]]), new Map(), []];
    for (const element of document.querySelectorAll("*")) {
      const style = getComputedStyle(element);
      const { backgroundColor, backgroundImage, opacity, filter, backdropFilter, mixBlendMode } = style;
      const isPainted = backgroundColor !== "rgba(0, 0, 0, 0)" || backgroundImage !== "none";
      let paint = behind.get(element.parentNode) ?? "";
      if (isPainted || opacity !== "1" || filter !== "none" || backdropFilter !== "none" || mixBlendMode !== "normal")
        paint += [backgroundColor, backgroundImage, opacity, filter, backdropFilter, mixBlendMode].join() + ";";
      behind.set(element, paint);
      const box = element.getBoundingClientRect();
      if (!box.width || !box.height) continue;
      if (isPainted || REPLACED.has(element.tagName)) painted.push([element, box]);
      if (excluded.has(element) || !hasText(element)) continue;
      const { color, fontSize, fontWeight, textShadow, webkitTextStrokeWidth, webkitTextStrokeColor } = style;
      found.set(element, [box, [paint, color, fontSize, fontWeight, textShadow, webkitTextStrokeWidth, webkitTextStrokeColor].join()]);
    }
    for (const [element, [box, appearance]] of found) {
      const isCovered = painted.some(
        ([other, on]) =>
          on.left < box.right && box.left < on.right && on.top < box.bottom && box.top < on.bottom &&
          !other.contains(element) && !element.contains(other),
      );
      found.set(element, isCovered || element.ownerSVGElement ? null : digest(appearance));
    }
    return found;
  };

  return async (scope, rules, measured) => {
    const known = new Set(measured);
    const excluded = new Set(scope.exclude.flatMap(([selector]) => [...document.querySelectorAll(`${selector}, ${selector} *`)]));
    const seen = appearances(excluded);
    contrast.matches = (node, ...rest) => !known.has(seen.get(node)) && applies.call(contrast, node, ...rest);
    const reporter = (results, _, resolve) => {
      const passed = results.find(({ id }) => id === "color-contrast")?.passes ?? [];
      // Also those pass which are not on the screen: they have no ratio.
      const ratios = passed.filter(({ any }) => any.some(({ id, data }) => id === "color-contrast" && data?.contrastRatio));
      resolve({
        broken: results
          .filter(({ violations }) => violations.length)
          .map(({ id, violations }) => `${id}: ${violations.slice(0, 3).map(({ node }) => node.selector[0]).join(", ")}`),
        measured: [...new Set(ratios.map(({ node }) => seen.get(node.element)))].filter((one) => one && !known.has(one)),
      });
    };
    // What lies under a bar that stays in view can be scrolled free of it: the bar is measured where the form ends.
    const bars = [...document.querySelectorAll(".save-bar")];
    for (const bar of bars) bar.style.position = "static";
    try {
      return await axe.run(scope, { ...rules, reporter });
    } finally {
      for (const bar of bars) bar.style.position = "";
    }
  };
})();
