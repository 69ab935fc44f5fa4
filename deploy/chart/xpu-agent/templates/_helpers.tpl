{{/* Names and labels. */}}
{{- define "xpu-agent.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "xpu-agent.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "xpu-agent.name" . -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "xpu-agent.selector" -}}
app.kubernetes.io/name: {{ include "xpu-agent.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "xpu-agent.labels" -}}
{{ include "xpu-agent.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "xpu-agent.serviceAccount" -}}
{{- default (ternary (include "xpu-agent.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "xpu-agent.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}

{{- define "xpu-agent.configMap" -}}
{{- default (printf "%s-config" (include "xpu-agent.fullname" .)) .Values.config.name -}}
{{- end -}}

{{/* The pools that are on, as JSON: name to pool. */}}
{{- define "xpu-agent.pools" -}}
{{- $on := dict -}}
{{- range $name, $pool := .Values.pools -}}
{{- if and $pool (ne (toString $pool.enabled) "false") -}}
{{- $_ := set $on $name $pool -}}
{{- end -}}
{{- end -}}
{{- toJson $on -}}
{{- end -}}

{{/* The presets of a pool's vendors, as a JSON list. Takes root and pool. */}}
{{- define "xpu-agent.presets" -}}
{{- $presets := list -}}
{{- range .pool.vendors -}}
{{- $presets = append $presets (get $.root.Values.vendors .) -}}
{{- end -}}
{{- toJson $presets -}}
{{- end -}}

{{/* One list of a pool: that of its vendors, then its own, each entry once. Takes root, pool and key. */}}
{{- define "xpu-agent.gathered" -}}
{{- $all := list -}}
{{- range fromJsonArray (include "xpu-agent.presets" .) -}}
{{- $all = concat $all (default list (get . $.key)) -}}
{{- end -}}
{{- toJson (concat $all (default list (get .pool .key)) | uniq) -}}
{{- end -}}

{{/* The ConfigMaps of a pool's vendors, as JSON: vendor to name. Takes root and pool. */}}
{{- define "xpu-agent.vendorConfigMaps" -}}
{{- $found := dict -}}
{{- range $vendor := .pool.vendors -}}
{{- with (get $.root.Values.vendors $vendor).configMap -}}{{- $_ := set $found $vendor . -}}{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* Where on the host a pool's agents write their log, too; empty is nowhere. Takes root and pool. */}}
{{- define "xpu-agent.logDir" -}}
{{- $dir := .root.Values.log.dir -}}
{{- range fromJsonArray (include "xpu-agent.presets" .) -}}
{{- $dir = default (default "" .logDir) $dir -}}
{{- end -}}
{{- $dir -}}
{{- end -}}

{{/* Whether a pool's agents may write to the host's /sys. Takes root and pool. */}}
{{- define "xpu-agent.writesSys" -}}
{{- $writes := .pool.writableSys -}}
{{- range fromJsonArray (include "xpu-agent.presets" .) -}}
{{- $writes = or $writes .writableSys -}}
{{- end -}}
{{- if $writes -}}yes{{- end -}}
{{- end -}}

{{/* The node selector terms that the vendors of a pool bring; none where the pool picks nodes itself. */}}
{{- define "xpu-agent.vendorTerms" -}}
{{- $terms := list -}}
{{- $everywhere := false -}}
{{- if not (or .pool.nodeSelector .pool.affinity) -}}
{{- range fromJsonArray (include "xpu-agent.presets" .) -}}
{{- if .nodes -}}{{- $terms = concat $terms .nodes -}}{{- else -}}{{- $everywhere = true -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson (ternary list $terms $everywhere) -}}
{{- end -}}

{{/* The whole affinity of a pool, as JSON. Takes root and pool. */}}
{{- define "xpu-agent.affinity" -}}
{{- $terms := fromJsonArray (include "xpu-agent.vendorTerms" .) -}}
{{- if .pool.affinity -}}
{{- toJson .pool.affinity -}}
{{- else if $terms -}}
{{- dict "nodeAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms)) | toJson -}}
{{- else -}}
{}
{{- end -}}
{{- end -}}

{{/* The container's security context: the chart's, over it the vendors', over it the pool's. */}}
{{- define "xpu-agent.securityContext" -}}
{{- $context := deepCopy .root.Values.securityContext -}}
{{- range fromJsonArray (include "xpu-agent.presets" .) -}}
{{- $context = mergeOverwrite $context (deepCopy (default dict .securityContext)) -}}
{{- end -}}
{{- $context = mergeOverwrite $context (deepCopy (default dict .pool.securityContext)) -}}
{{- $added := dig "capabilities" "add" list $context -}}
{{- if or $context.privileged (has "SYS_ADMIN" $added) (has "CAP_SYS_ADMIN" $added) -}}
{{- /* The API server refuses these beside allowPrivilegeEscalation: false. */ -}}
{{- $context = omit $context "allowPrivilegeEscalation" -}}
{{- end -}}
{{- toJson $context -}}
{{- end -}}

{{/* Whether pods of the old and the new template can stand beside each other on a node. */}}
{{- define "xpu-agent.updateStrategy" -}}
{{- if .Values.updateStrategy -}}
{{- toYaml .Values.updateStrategy -}}
{{- else if or (gt (int .Values.http.hostPort) 0) (semverCompare "<1.22.0-0" .Capabilities.KubeVersion.Version) -}}
type: RollingUpdate
rollingUpdate: {maxUnavailable: 1}
{{- else -}}
type: RollingUpdate
rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
{{- end -}}
{{- end -}}

{{- define "xpu-agent.admissionPolicy" -}}
{{- $new := semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version -}}
{{- $wanted := toString .Values.admissionPolicy.enabled -}}
{{- if and .Values.api.enabled (or (eq $wanted "true") (and (eq $wanted "auto") $new)) -}}yes{{- end -}}
{{- end -}}

{{- define "xpu-agent.hookBefore" -}}
labels:
  {{- include "xpu-agent.labels" . | nindent 2 }}
annotations:
  helm.sh/hook: post-delete
  helm.sh/hook-weight: "-1"
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}
