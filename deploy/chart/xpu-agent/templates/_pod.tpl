{{/* Where a pool's pods go. Takes root and pool. */}}
{{- define "xpu-agent.placement" -}}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pool.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .pool.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with fromJson (include "xpu-agent.affinity" .) }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with concat .root.Values.tolerations (fromJsonArray (include "xpu-agent.gathered" (merge (dict "key" "tolerations") .))) | uniq }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The agent's environment: the chart's, the vendors', the pool's, extraEnv; of one name the last. Takes root and pool. */}}
{{- define "xpu-agent.environment" -}}
{{- $given := concat (fromYamlArray (include "xpu-agent.env" .)) (fromJsonArray (include "xpu-agent.libraryPath" .)) (fromJsonArray (include "xpu-agent.gathered" (merge (dict "key" "env") .))) .root.Values.extraEnv -}}
{{- $last := dict -}}
{{- $names := list -}}
{{- range $given -}}
{{- $names = append $names .name -}}
{{- $_ := set $last .name . -}}
{{- end -}}
{{- $env := list -}}
{{- range uniq $names -}}
{{- $env = append $env (get $last .) -}}
{{- end -}}
{{- toYaml $env -}}
{{- end -}}

{{/* Where the loader looks for what the vendors' libraries need, as a JSON list of one variable or none. Takes root and pool. */}}
{{- define "xpu-agent.libraryPath" -}}
{{- $paths := list -}}
{{- range $preset := fromJsonArray (include "xpu-agent.presets" .) -}}
{{- if $preset.libraryFolder -}}
{{- range concat (default list $preset.libraries) (default list $.pool.libraries) -}}
{{- $paths = append $paths (printf "/driver-root%s/%s" . $preset.libraryFolder) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $variables := list -}}
{{- if $paths -}}
{{- $variables = list (dict "name" "LD_LIBRARY_PATH" "value" (join ":" (uniq $paths))) -}}
{{- end -}}
{{- toJson $variables -}}
{{- end -}}

{{/* What the chart itself tells the agent. Takes root. */}}
{{- define "xpu-agent.env" -}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- {name: XPU_AGENT_CONFIG, value: /etc/xpu-agent}
{{- with default .root.Values.config.default .pool.defaultConfig }}
- {name: XPU_AGENT_DEFAULT_CONFIG, value: {{ . | quote }}}
{{- end }}
- {name: XPU_AGENT_FALLBACK_STRATEGIES, value: {{ join "," .root.Values.config.fallbackStrategies | quote }}}
- {name: XPU_AGENT_POD_RESOURCES_SOCKET, value: {{ .root.Values.kubelet.dir }}/pod-resources/kubelet.sock}
- {name: XPU_AGENT_STATE_DIR, value: {{ .root.Values.stateDir }}}
- {name: XPU_AGENT_CDI_DIR, value: {{ .root.Values.cdi.dir }}}
- {name: XPU_AGENT_HTTP, value: {{ printf "%s:%v" .root.Values.http.address .root.Values.http.port | quote }}}
- {name: XPU_AGENT_LOG_LEVEL, value: {{ .root.Values.log.level }}}
- {name: XPU_AGENT_LOG_FORMAT, value: {{ .root.Values.log.format }}}
{{- with include "xpu-agent.logDir" . }}
- {name: XPU_AGENT_LOG_DIR, value: {{ . }}}
{{- end }}
{{- if eq .root.Values.labels.output "file" }}
- {name: GFD_OUTPUT_FILE, value: {{ .root.Values.labels.directory }}/xpu-agent}
{{- else if eq .root.Values.labels.output "nodeFeature" }}
- {name: USE_NODE_FEATURE_API, value: "true"}
{{- else if eq .root.Values.labels.output "none" }}
- {name: XPU_AGENT_REPORT_LABELS, value: "false"}
{{- end }}
{{- if not .root.Values.events.enabled }}
- {name: XPU_AGENT_REPORT_EVENTS, value: "false"}
{{- end }}
{{- if not .root.Values.pods.enabled }}
- {name: XPU_AGENT_WATCH_PODS, value: "false"}
{{- end }}
{{- if .root.Values.usage.enabled }}
- {name: XPU_AGENT_USAGE_ENABLED, value: "true"}
{{- end }}
{{- with .root.Values.metrics.compat }}
- {name: XPU_AGENT_METRICS_COMPAT, value: {{ join "," . | quote }}}
{{- end }}
{{- with include "xpu-agent.wayToApi" .root | trim }}
{{ . }}
{{- end }}
{{- end -}}

{{/* The directory of the pods' logs, where the API server does not name the pods: each entry is named by its pod. Takes root. */}}
{{- define "xpu-agent.podLogs" -}}
{{- if and .Values.usage.enabled (not (and .Values.api.enabled .Values.pods.enabled)) -}}/var/log/pods{{- end -}}
{{- end -}}

{{/* Read-only all the way down, where the kubelet knows how: /dev and /sys/fs/cgroup have mounts below them. */}}
{{- define "xpu-agent.recursively" -}}
{{- if semverCompare ">=1.33.0-0" .Capabilities.KubeVersion.Version -}}
recursiveReadOnly: IfPossible
{{- end -}}
{{- end -}}

{{/* Where the API server is, if not where pods find it by themselves. */}}
{{- define "xpu-agent.wayToApi" -}}
{{- with .Values.api.host }}
- {name: KUBERNETES_SERVICE_HOST, value: {{ . | quote }}}
{{- end }}
{{- with .Values.api.port }}
- {name: KUBERNETES_SERVICE_PORT, value: {{ . | quote }}}
{{- end }}
{{- end -}}

{{/* Whether the API server has labels, or cards in Devices, to be taken back in the end. */}}
{{- define "xpu-agent.takesBack" -}}
{{- $told := or .Values.koordinator.enabled .Values.nodeAnnotations.enabled .Values.nodeStatus.resources (has .Values.labels.output (list "node" "nodeFeature")) -}}
{{- if and .Values.api.enabled .Values.rbac.create $told -}}yes{{- end -}}
{{- end -}}

{{/* Whether the uninstall hook can ask the API server how far the nodes are. */}}
{{- define "xpu-agent.asksForNodes" -}}
{{- if and .Values.api.enabled .Values.rbac.create -}}yes{{- end -}}
{{- end -}}

{{/* The host's network, where pods have none of their own. */}}
{{- define "xpu-agent.network" -}}
{{- if .Values.hostNetwork -}}
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
{{- end -}}
{{- end -}}

{{/*
On the host's network it is the last agent that answers the next one's probes, until it ends: it is given the time to
start. minReadySeconds would do so too, but the DaemonSet controller (1.36) may forget to look again, where a rollout
follows another one within them.
*/}}
{{- define "xpu-agent.readiness" -}}
{{- $given := dict -}}
{{- if .Values.hostNetwork -}}{{- $given = dict "initialDelaySeconds" 10 -}}{{- end -}}
{{- toYaml (mergeOverwrite $given .Values.probes.readiness) -}}
{{- end -}}
