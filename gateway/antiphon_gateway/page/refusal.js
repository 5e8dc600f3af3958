// Why the gateway refused a WebSocket. A browser reports nothing but close code 1006, so the page
// asks the gateway over HTTP.

/**
 * The `reason`; `retry` if another attempt may succeed by itself, `needsKey` if it needs another key.
 * `ready` if the gateway is ready now, which it may not have been when it refused.
 */
export async function refusal(key) {
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  try {
    const models = await fetch("v1/models", { headers });
    if (models.status === 401) {
      const reason = key ? "The API key was rejected." : "This gateway requires an API key.";
      return { reason, needsKey: true };
    }
    if (models.status === 503) return { reason: "The model is still loading …", retry: true };
    const health = await fetch("health");
    if (health.status === 503) {
      const { reason } = await health.json();
      return { reason: `The gateway is not ready: ${reason}.`, retry: true };
    }
    return { reason: "The gateway rejected the conversation.", ready: true };
  } catch {
    return { reason: "Can't reach the gateway. Retrying …", retry: true };
  }
}
