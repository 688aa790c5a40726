// audit(scope, rules, measured): run axe without the contrast of texts whose appearance was measured and passed.
// An appearance is all that contrast depends on: the computed colours of a text and of all that is painted behind it, its size
// and its weight; where others that do not contain it are painted all over it or under it, theirs too, and their place in the stack.
// Where a picture or the edge of something else is on it, so are the text itself and their exact places. Where contrast alone is
// asked for and every appearance passed, axe is not run.
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
    [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && isJudged(node.nodeValue));

  // axe passes over what has neither letters nor digits.
  const isJudged = (text) => axe.commons.text.removeUnicode(text, { emoji: true, punctuations: true }).trim();

  // axe measures none of them: what is switched off, what a screen reader alone is given, what waits above the page for the focus.
  const isForNoEye = (element, box) =>
    element.closest(":disabled, [aria-disabled=true]") !== null || (box.width <= 1 && box.height <= 1) || box.bottom + scrollY <= 0;

  // What decides which of two that overlap is in front.
  const stacked = new Map();
  const stackOf = (element) => {
    if (!element) return "";
    if (!stacked.has(element)) {
      const { position, zIndex, transform, isolation } = getComputedStyle(element);
      const own = position === "static" && transform === "none" && isolation === "auto" && zIndex === "auto";
      stacked.set(element, stackOf(element.parentElement) + (own ? "" : `${position} ${zIndex} ${transform} ${isolation};`));
    }
    return stacked.get(element);
  };

  // By element with a text of its own: a digest of its appearance.
  const appearances = () => {
    const [behind, found, painted] = [new Map([[document, ""]]), new Map(), []];
    stacked.clear();
    for (const element of document.querySelectorAll("*")) {
      if (!element.checkVisibility()) {
        behind.set(element, behind.get(element.parentNode) ?? "");
        continue; // in a closed menu, for one: neither read nor painted
      }
      const style = getComputedStyle(element);
      const { backgroundColor, backgroundImage, opacity, filter, backdropFilter, mixBlendMode } = style;
      const isPainted = backgroundColor !== "rgba(0, 0, 0, 0)" || backgroundImage !== "none";
      let paint = behind.get(element.parentNode) ?? "";
      if (isPainted || opacity !== "1" || filter !== "none" || backdropFilter !== "none" || mixBlendMode !== "normal")
        paint += [backgroundColor, backgroundImage, opacity, filter, backdropFilter, mixBlendMode].join() + ";";
      behind.set(element, paint);
      const box = element.getBoundingClientRect();
      if (!box.width || !box.height) continue;
      if (isPainted || REPLACED.has(element.tagName)) painted.push([element, box, paint]);
      // Of a text in a picture axe finds no background, and judges nothing.
      if (element.ownerSVGElement || !hasText(element) || isForNoEye(element, box)) continue;
      const { color, fontSize, fontWeight, textShadow, webkitTextStrokeWidth, webkitTextStrokeColor } = style;
      found.set(element, [box, [paint, color, fontSize, fontWeight, textShadow, webkitTextStrokeWidth, webkitTextStrokeColor].join()]);
    }
    for (const [element, [box, appearance]] of found) {
      const others = painted.filter(
        ([other, on]) =>
          on.left < box.right && box.left < on.right && on.top < box.bottom && box.top < on.bottom &&
          !other.contains(element) && !element.contains(other),
      );
      const isEven = others.every(
        ([other, on]) =>
          !REPLACED.has(other.tagName) &&
          on.left <= box.left && box.right <= on.right && on.top <= box.top && box.bottom <= on.bottom,
      );
      const layers = others.map(([other, on, paint]) => {
        const isBefore = other.compareDocumentPosition(element) & Node.DOCUMENT_POSITION_FOLLOWING;
        const place = [on.left - box.left, on.top - box.top, on.width, on.height, REPLACED.has(other.tagName) && other.outerHTML];
        return [isBefore, stackOf(other), paint, ...(isEven ? [] : place)].join();
      });
      if (layers.length) layers.push(stackOf(element));
      if (!isEven) layers.push(box.width, box.height, element.value ?? element.innerText);
      found.set(element, digest([appearance, ...layers].join("|")));
    }
    return found;
  };

  const run = async (scope, rules, known) => {
    const seen = appearances();
    const isContrastAlone = rules.runOnly.values.join() === "color-contrast";
    if (isContrastAlone && [...seen.values()].every((one) => known.has(one))) return { broken: [], measured: [] };
    contrast.matches = (node, ...rest) =>
      !node.ownerSVGElement && !known.has(seen.get(node)) && applies.call(contrast, node, ...rest);
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
    return axe.run(scope, { ...rules, reporter });
  };

  return async (scope, rules, measured) => {
    // What lies under a bar that stays in view can be scrolled free of it: the bar is measured where the form ends.
    const bars = [...document.querySelectorAll(".save-bar")];
    for (const bar of bars) bar.style.position = "static";
    // What is excluded is not even laid out: axe would look for the place of each element of a long list.
    const rest = new CSSStyleSheet();
    rest.replaceSync(`${scope.exclude.join()} { display: none !important }`);
    document.adoptedStyleSheets.push(rest);
    try {
      return await run(scope, rules, new Set(measured));
    } finally {
      document.adoptedStyleSheets.splice(document.adoptedStyleSheets.indexOf(rest), 1);
      for (const bar of bars) bar.style.position = "";
    }
  };
})();
